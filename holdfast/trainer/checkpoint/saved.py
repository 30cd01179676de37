"""A checkpoint that was saved within the call, and its report."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.trainer.report import checkpoint_saved


@dataclass(frozen=True)
class SavedCheckpoint:
    """A checkpoint that has just become restorable, and all the ``steps`` that now are.

    ``took_s`` is the time in seconds for which training paused on rank 0.
    """

    step: int
    path: str
    nbytes: int
    took_s: float
    steps: tuple[int, ...] = ()


def report_saved(saved: SavedCheckpoint) -> None:
    checkpoint_saved(
        step=saved.step, path=saved.path, checkpoint_bytes=saved.nbytes, took_s=saved.took_s, steps=saved.steps
    )
