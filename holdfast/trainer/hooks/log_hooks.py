"""Hooks on the writer of TensorBoard's files, so that the agent knows them and sees them in time.

The writer that comes with `tensorboard` reopens its file for each piece, so its descriptors do not show which files a
rank logs to; and it holds back two minutes of samples, in which a training may be spoiled.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

from holdfast.trainer.phases import binding
from holdfast.trainer.report import report

FLUSH_S_MAX = 10.0


def patch_event_files(module: ModuleType) -> None:
    writer = getattr(module, "EventFileWriter", None)
    if writer is not None:
        writer.__init__ = _reporting(writer.__init__)


def _reporting(original: Callable[..., None]) -> Callable[..., None]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        if binding.ledger is None:
            original(self, *args, **kwargs)
            return
        given = signature.bind(self, *args, **kwargs)
        given.apply_defaults()
        if isinstance(given.arguments.get("flush_secs"), int | float):
            given.arguments["flush_secs"] = min(given.arguments["flush_secs"], FLUSH_S_MAX)
        original(*given.args, **given.kwargs)
        path = getattr(self, "_file_name", None)
        # What lies in an object store is not read.
        if isinstance(path, str) and "://" not in path:
            # A full disk is no reason for the script to fail here already.
            with contextlib.suppress(OSError):
                report("training_log", path=os.path.abspath(path))

    return __init__
