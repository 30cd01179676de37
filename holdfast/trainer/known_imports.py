"""Notes the large packages that a job's script imports, for interpreters that are made ahead of its restart.

Importing some of them takes longer than the whole restart. The list has only packages whose import has no side effect:
it initializes no device and starts no server and no other process.
"""

from __future__ import annotations

import importlib
import os
import select
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from holdfast.trainer.steps.guard import harmless

FILE = "imports.json"
LOOK_EVERY_S = 0.5
NAMES_MAX = 4_096
PACKAGES = frozenset(
    {
        "accelerate",
        "datasets",
        "diffusers",
        "einops",
        "huggingface_hub",
        "hydra",
        "lightning",
        "lightning_fabric",
        "numpy",
        "omegaconf",
        "pandas",
        "peft",
        "pyarrow",
        "pytorch_lightning",
        "safetensors",
        "scipy",
        "sklearn",
        "tokenizers",
        "torchmetrics",
        "torchvision",
        "transformers",
        "trl",
    }
)


@harmless
def note_imports() -> None:
    """Note what this rank has imported by its first step, unless that is noted; one rank of each node does."""
    path = _path()
    if path is None or os.environ.get("LOCAL_RANK") != "0":
        return
    names = [name for name in tuple(sys.modules) if name.partition(".")[0] in PACKAGES][:NAMES_MAX]
    if not names or set(names) == set(_noted() or ()):
        # The step of a restart does not wait for the disk: ext4 allocates a file at once that replaces another one.
        return
    part = path.with_suffix(".part")
    part.write_bytes(msgspec.json.encode(names))
    part.replace(path)


def import_until_ready(link: socket.socket) -> None:
    """Import what ranks of this job have imported, one module after another, until there is something to receive."""
    names: Iterator[str] | None = None
    while True:
        is_idle = names is None
        if select.select([link], [], [], LOOK_EVERY_S if is_idle else 0)[0]:
            return
        if names is None:
            names = _noted()
        elif (name := next(names, None)) is None:
            select.select([link], [], [])
            return
        else:
            _import(name)


def import_noted(link: socket.socket) -> None:
    """Import what a rank of this job has noted, until all is there or there is something to receive."""
    for name in _noted() or ():
        if select.select([link], [], [], 0)[0]:
            return
        _import(name)


def _noted() -> Iterator[str] | None:
    path = _path()
    try:
        if path is None:
            return iter(())
        names = msgspec.json.decode(path.read_bytes(), type=list[str])
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError):
        return iter(())
    return (name for name in names[:NAMES_MAX] if name.partition(".")[0] in PACKAGES)


def _import(name: str) -> None:
    try:
        importlib.import_module(name)
    except Exception:  # noqa: BLE001 - what the script imports it will import itself, and see why that fails
        return


def _path() -> Path | None:
    directory = os.environ.get("HOLDFAST_JOB_DIR")
    return Path(directory) / FILE if directory else None
