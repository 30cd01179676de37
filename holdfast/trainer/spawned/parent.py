"""The side of the rank: what it sends to a process that it spawns, besides what `multiprocessing` sends itself.

No variable and no file of the user's changes for it: the entry is part of the data from which a spawned process
prepares itself, and that process runs it when it reads them, whichever Python runs it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from holdfast.trainer.phases import binding

ENTRY = "holdfast"
_SOURCE = Path(__file__).with_name("awaits_torch.py")


class _Run:
    """Becomes a call of `exec` where it is unpickled. Its names stay there."""

    def __init__(self, code: str) -> None:
        self._code = code

    def __reduce__(self) -> tuple[Callable[..., None], tuple[str, dict[str, Any]]]:
        return exec, (self._code, {})


def patch_spawn(module: ModuleType) -> None:
    """Hook the data that a spawned process is given."""
    original = module.get_preparation_data

    @functools.wraps(original)
    def get_preparation_data(*args: Any, **kwargs: Any) -> dict[str, Any]:
        data: dict[str, Any] = original(*args, **kwargs)
        ledger = binding.ledger
        # A rank that makes steps itself spawns workers.
        if ledger is not None and binding.recorder is None and not ledger.steps_done:
            begin = f"import sys\nsys.meta_path.insert(0, AwaitsTorch({str(ledger.path)!r}))\n"
            data[ENTRY] = _Run(f"{_SOURCE.read_text()}\n{begin}")
        return data

    module.get_preparation_data = get_preparation_data  # type: ignore[attr-defined]
