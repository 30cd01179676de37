"""Hooks on what scripts load checkpoints with: torch.load, torch.distributed.checkpoint, safetensors, accelerate."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from holdfast.trainer.phases import binding
from holdfast.trainer.steps.guard import harmless
from holdfast.trainer.steps.saves import find_saves, patch_dcp_save
from holdfast.trainer.steps.step_start import number_in, path_of

LOADED_STATE = "_holdfast_loaded_state"
"""Attribute of an Accelerator that has loaded a folder: the step by the folder's name, None if it has none."""

_NUMBERED_FOLDER = re.compile(r"(?:global_?)?(?:step|iter)[-_]?(\d+)", re.IGNORECASE)


def patch_torch_load(torch: ModuleType) -> None:
    noting = _noting(torch.load, "f")
    torch.load = torch.serialization.load = noting  # type: ignore[attr-defined]


def patch_dcp(package: ModuleType) -> None:
    """Hook `dcp.load`, which fills the state that it is given, and what saves."""
    patch_dcp_save(package)
    original = package.load

    @functools.wraps(original)
    def load(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        state = args[0] if args else kwargs.get("state_dict")
        place = kwargs.get("checkpoint_id") or getattr(kwargs.get("storage_reader"), "path", None)
        _note(state, place)
        return result

    package.load = load  # type: ignore[attr-defined]


def patch_safetensors(module: ModuleType) -> None:
    for name in ("load_file", "load_model"):
        if hasattr(module, name):
            place = "filename"
            setattr(module, name, _noting(getattr(module, name), place, at=0 if name == "load_file" else 1))


def patch_accelerator(module: ModuleType) -> None:
    """Hook `load_state`: its folder's name may have the step, as in accelerate's examples."""
    original = module.Accelerator.load_state

    @functools.wraps(original)
    def load_state(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        folder = args[0] if args else kwargs.get("input_dir")
        setattr(self, LOADED_STATE, _step_in_name(folder))
        _note_folder(folder)
        return result

    module.Accelerator.load_state = load_state


def _noting(original: Callable[..., Any], place: str, at: int = 0) -> Callable[..., Any]:
    @functools.wraps(original)
    def load(*args: Any, **kwargs: Any) -> Any:
        value = original(*args, **kwargs)
        _note(value, args[at] if len(args) > at else kwargs.get(place))
        return value

    return load


@harmless
def _note(value: object, place: object) -> None:
    # What is loaded while it trains shows no start.
    if binding.ledger is not None and not binding.is_begun:
        saved, copies = find_saves(path_of(place), number_in(value))
        binding.start.note_loaded(value, place, saved, copies)


@harmless
def _note_folder(folder: Any) -> None:
    if (step := _step_in_name(folder)) is not None:
        _note({"step": step}, folder)


def _step_in_name(folder: Any) -> int | None:
    found = _NUMBERED_FOLDER.fullmatch(Path(folder).name) if isinstance(folder, str | os.PathLike) else None
    return None if found is None else int(found[1])
