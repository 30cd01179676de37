"""Checkpoints of a job: `from holdfast.trainer.checkpoint import Checkpointer`.

The names are loaded on first use, since that loads torch: the vault and the command line use modules of this package
which need none.
"""

# ruff: noqa: F403, F405 - this package republishes what `checkpointer.py` lists
from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.trainer.checkpoint.checkpointer import *

__all__ = [
    "CheckpointError",
    "CheckpointMismatch",
    "Checkpointer",
    "DamagedCheckpoint",
    "DirectoryStorage",
    "PerRank",
    "PerShard",
    "RngState",
    "SavedCheckpoint",
    "Storage",
    "Superseded",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from holdfast.trainer.checkpoint import checkpointer

    return getattr(checkpointer, name)
