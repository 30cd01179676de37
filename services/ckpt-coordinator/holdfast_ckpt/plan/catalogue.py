"""The catalogue's decisions. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime

from holdfast.events import CheckpointSaved, StepRestorable
from holdfast.ids import derived_id
from holdfast_ckpt.plan.checkpoint_state import CataloguedStep

SOURCE = "ckpt-coordinator"

KEPT_MAX = 10
"""Steps of a job that the catalogue keeps. Ranks choose from what is on the disk, so older ones help nobody."""


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


def outdated(saved_at: Mapping[int, datetime], there: Collection[int] = ()) -> list[int]:
    """The steps of a job that the catalogue no longer keeps: those that are not `there`, if somebody has looked.

    Else by time: one that went back saves lower steps.
    """
    newest_first = sorted(saved_at, key=lambda step: (saved_at[step], step), reverse=True)
    gone = [step for step in newest_first[:KEPT_MAX] if there and step not in there]
    return gone + newest_first[KEPT_MAX:]
