"""The catalogue's decisions. Pure."""

from __future__ import annotations

from datetime import datetime

from holdfast.events import CheckpointSaved, StepRestorable
from holdfast.ids import derived_id
from holdfast_ckpt.state import CataloguedStep

SOURCE = "ckpt-coordinator"


def record(event: CheckpointSaved, now: datetime) -> tuple[CataloguedStep, StepRestorable]:
    """The catalogue's entry for a checkpoint, and the finding that it can be restored from now on."""
    assert event.job is not None
    entry = CataloguedStep(
        job=event.job,
        step=event.step,
        path=event.path,
        checkpoint_bytes=event.checkpoint_bytes,
        saved_at=event.at,
        generation=event.generation or 0,
    )
    finding = StepRestorable(
        id=derived_id(event.id, "restorable"),
        at=now,
        source=SOURCE,
        job=event.job,
        generation=event.generation,
        cause=event.id,
        step=event.step,
        path=event.path,
        checkpoint_bytes=event.checkpoint_bytes,
    )
    return entry, finding
