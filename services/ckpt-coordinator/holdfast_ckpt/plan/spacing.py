"""Jobs that keep every second, fourth, ... step in memory: the ranks choose that, and the plan of copies follows it
(ADR 58)."""

from __future__ import annotations

from math import ceil

import msgspec

from holdfast.events import KeepingSpaced
from holdfast.events.parts.persist_every import PersistEvery
from holdfast.events.summaries import summary
from holdfast_ckpt.plan.records import JobBackups, KeptSpacing


def spaced(plan: JobBackups, event: KeepingSpaced, decision: str) -> JobBackups:
    """Return the plan with the distance that the ranks report, unless a newer one is known."""
    if event.generation != plan.generation or event.step <= plan.kept.step:
        return plan
    kept = KeptSpacing(every=event.every, step=event.step, reason=summary(event))
    after = msgspec.structs.replace(plan, kept=kept)
    persist_every = persisted_every(after)
    if persist_every == plan.persist_every:
        return after
    return msgspec.structs.replace(after, persist_every=persist_every, ordered_by=decision)


def persisted_every(plan: JobBackups) -> int:
    """Return the distance of steps on the disk, by the job's wish and by what it keeps; 0: none goes there."""
    wanted = PersistEvery.parse(plan.persist).in_steps(plan.step_s, plan.persist_every)
    return ceil(wanted / plan.kept.every) * plan.kept.every
