"""Imports are most of what the start of a process takes: this makes them cheaper."""

from __future__ import annotations

import gc
import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Variables by which numpy's libraries learn how many threads they may start."""


def logs_are_readable() -> bool:
    """Return True if people read the logs of this process, on a terminal or by HOLDFAST_LOG=console."""
    return sys.stderr.isatty() or os.environ.get("HOLDFAST_LOG") == "console"


@contextmanager
def quick_imports() -> Iterator[None]:
    """Import what the process needs inside this block."""
    was_enabled = gc.isenabled()
    # Nearly everything that is imported stays: searching it for garbage meanwhile, or ever, finds nothing.
    gc.disable()
    if not logs_are_readable():
        _import_without("structlog", "rich")
    # numpy's libraries start a thread per core when they are imported. These spin, forks lack them, and no service
    # computes enough to use them.
    given = {name: os.environ.get(name) for name in _ONE_THREAD}
    os.environ.update(dict.fromkeys(_ONE_THREAD, "1"))
    try:
        yield
    finally:
        for name, value in given.items():
            del os.environ[name]
            if value is not None:
                os.environ[name] = value
        gc.freeze()
        if was_enabled:
            gc.enable()


def _import_without(module: str, optional: str) -> None:
    """Import a module as if one that it uses where it finds it were not installed."""
    if module in sys.modules or optional in sys.modules:
        return
    # None is how the import system is told that there is no such module.
    sys.modules[optional] = None  # type: ignore[assignment]
    try:
        importlib.import_module(module)
    finally:
        del sys.modules[optional]
