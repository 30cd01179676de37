"""The coordinator's rows: one for each catalogued step."""

from __future__ import annotations

from typing import Any

from holdfast.store import Table
from holdfast_ckpt.state import CataloguedStep


def _columns(entry: CataloguedStep) -> dict[str, Any]:
    return {
        "job": entry.job,
        "step": entry.step,
        "path": entry.path,
        "bytes": entry.checkpoint_bytes,
        "saved_at": entry.saved_at,
    }


STEPS = Table(name="steps", row_type=CataloguedStep, columns=_columns)


def key_of(job: str, step: int) -> str:
    """An entry's key: a step saved again by a later generation replaces the earlier one."""
    return f"{job}/{step}"
