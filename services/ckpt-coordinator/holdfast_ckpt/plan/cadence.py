"""The cadence of copies: one step in `every` is sent, as often as the network carries them.

A copy that takes longer than the time until the next one leaves steps without copies; one that takes half of that time
already competes with training for the network. So `every` doubles when a node reports twice in a row that it was late,
and halves when all reports of a minute show room.

Hysteresis: room means an eighth of the time between two copies. After halving, the same copy takes a quarter of that
time, half of what counts as late, so only a network twice as slow reverses the change. A single late report does
nothing: each start opens new connections, and a first copy waits for that. A change begins at a step five seconds
ahead, and the reports of some more seconds are still about the time before it.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum

import msgspec

from holdfast.events import CopiesMeasured
from holdfast.settings.checkpoint import BACKUP_EVERY_MAX
from holdfast_ckpt.plan.lead_time import LEAD_S

LATE_SHARE = 1 / 2
ROOMY_SHARE = 1 / 8
ROOM_FOR = timedelta(seconds=60)
SETTLING = timedelta(seconds=5)
LEAD = timedelta(seconds=LEAD_S)


class Load(StrEnum):
    """Load of the way to the keeper, by one report."""

    LATE = "late"
    FITS = "fits"
    ROOMY = "roomy"


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """Present cadence of a job's copies, and the recent reports about it."""

    every: int
    since: datetime
    cramped_at: datetime
    """Time of the last report that was not roomy."""
    late: frozenset[str] = frozenset()
    """Nodes whose last report was late."""


def start(every: int, now: datetime) -> Pace:
    return Pace(every=every, since=now, cramped_at=now)


def load_of(every: int, took_s: float, step_s: float | None, skipped: int) -> Load:
    """Return the load by one report: seconds per copy, step time (None if not known yet), and steps without copies."""
    if skipped:
        return Load.LATE
    if step_s is None:
        return Load.FITS
    between_s = every * step_s
    if took_s > LATE_SHARE * between_s:
        return Load.LATE
    return Load.ROOMY if took_s <= ROOMY_SHARE * between_s else Load.FITS


def adapt(pace: Pace, node: str, load: Load, now: datetime, least: int) -> Pace:
    """Return the pace after a node's report; `least` is the configured distance of copies, the lower limit."""
    if now < pace.since + SETTLING:
        return pace
    if load is Load.LATE:
        if node in pace.late and pace.every < BACKUP_EVERY_MAX:
            return start(min(2 * pace.every, BACKUP_EVERY_MAX), now + LEAD)
        return msgspec.structs.replace(pace, late=pace.late | {node}, cramped_at=now)
    if node in pace.late:
        pace = msgspec.structs.replace(pace, late=pace.late - {node})
    if load is Load.FITS:
        return msgspec.structs.replace(pace, cramped_at=now)
    if pace.every > least and now - pace.cramped_at >= ROOM_FOR:
        return start(max(pace.every // 2, least), now + LEAD)
    return pace


def reason(before: int, after: int, report: CopiesMeasured) -> str:
    """Return why the distance of copies changes, as a sentence. `before` and `after` are in steps."""
    if after < before:
        why = f"there was room for {ROOM_FOR.total_seconds():.0f} s"
    elif report.skipped:
        why = f"{report.node} does not keep up, {report.skipped} steps got no copy since its last report"
    else:
        why = f"{report.node} does not keep up, a copy took {report.took_s:.2g} s of the time until the next"
    return f"{why}: copies of {_steps(after)} instead of {_steps(before)}"


def _steps(every: int) -> str:
    return "every step" if every == 1 else f"one step in {every}"
