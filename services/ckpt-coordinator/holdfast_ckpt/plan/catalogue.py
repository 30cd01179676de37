"""The catalogue of steps on the disk."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime

from holdfast.events import CheckpointSaved, StepRestorable
from holdfast.ids import derived_id
from holdfast_ckpt.plan.records import CataloguedStep

SOURCE = "ckpt-coordinator"

KEPT_MAX = 10
"""Steps of a job in the catalogue. Ranks choose from what is on the disk, so older entries are of no use."""


def catalogue_entry(job: str, event: CheckpointSaved, now: datetime) -> tuple[CataloguedStep, StepRestorable]:
    """Return the catalogue's entry for a checkpoint, and the event that it can be restored from now on."""
    entry = CataloguedStep(
        job=job,
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
        job=job,
        generation=event.generation,
        cause=event.id,
        step=event.step,
        path=event.path,
        checkpoint_bytes=event.checkpoint_bytes,
    )
    return entry, finding


def outdated(saved_at: Mapping[int, datetime], on_disk: Collection[int] = ()) -> list[int]:
    """Return the steps of a job to remove from the catalogue: all but the newest by time (a job that went back saves
    lower steps), and those not in `on_disk` (empty: the disk was not listed).
    """
    newest_first = sorted(saved_at, key=lambda step: (saved_at[step], step), reverse=True)
    gone = [step for step in newest_first[:KEPT_MAX] if on_disk and step not in on_disk]
    return gone + newest_first[KEPT_MAX:]
