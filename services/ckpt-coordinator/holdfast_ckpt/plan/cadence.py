"""How often copies are sent: as often as the network carries them, and no oftener. Pure.

A copy that takes longer than the time until the next one leaves steps without any; one that takes half of that time
already competes with training for the network. So `every` doubles when a node reports twice in a row that it was late,
and halves when for a minute all reports said that there is room.

Hysteresis: room is an eighth of the time between two copies. After halving, the same copy takes a quarter of it, half
of what counts as late, so only a network that got twice as slow leads back. One late report alone does nothing:
connections are made anew at each start, and a first copy waits for that. A change holds from a step on that is five
seconds ahead, and the reports of some seconds more are still about how it was before.
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
    """What a report says of the way to the keeper."""

    LATE = "late"
    FITS = "fits"
    ROOMY = "roomy"


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How the copies of a job keep up with its steps.

    `late` are the nodes whose last report was late; `cramped_at` is when the last report came that was not roomy.
    """

    every: int
    since: datetime
    cramped_at: datetime
    late: frozenset[str] = frozenset()


def begin(every: int, now: datetime) -> Pace:
    """From now on every so many steps."""
    return Pace(every=every, since=now, cramped_at=now)


def load_of(every: int, took_s: float, step_s: float | None, skipped: int) -> Load:
    """What one report says: how long copies took, and how many were left out. `step_s` None: not known yet."""
    if skipped:
        return Load.LATE
    if step_s is None:
        return Load.FITS
    between_s = every * step_s
    if took_s > LATE_SHARE * between_s:
        return Load.LATE
    return Load.ROOMY if took_s <= ROOMY_SHARE * between_s else Load.FITS


def paced(pace: Pace, node: str, load: Load, now: datetime, least: int) -> Pace:
    """The pace after a node's report; `least` is what was asked for, and never gone below."""
    if now < pace.since + SETTLING:
        return pace
    if load is Load.LATE:
        if node in pace.late and pace.every < BACKUP_EVERY_MAX:
            return begin(min(2 * pace.every, BACKUP_EVERY_MAX), now + LEAD)
        return msgspec.structs.replace(pace, late=pace.late | {node}, cramped_at=now)
    if node in pace.late:
        pace = msgspec.structs.replace(pace, late=pace.late - {node})
    if load is Load.FITS:
        return msgspec.structs.replace(pace, cramped_at=now)
    if pace.every > least and now - pace.cramped_at >= ROOM_FOR:
        return begin(max(pace.every // 2, least), now + LEAD)
    return pace


def in_words(before: int, after: int, report: CopiesMeasured) -> str:
    """Why the pace changes with this report."""
    if after < before:
        why = f"there was room for {ROOM_FOR.total_seconds():.0f} s"
    elif report.skipped:
        why = f"{report.node} does not keep up, {report.skipped} steps got no copy since its last report"
    else:
        why = f"{report.node} does not keep up, a copy took {report.took_s:.2g} s of the time until the next"
    return f"{why}: copies of {_steps(after)} instead of {_steps(before)}"


def _steps(every: int) -> str:
    return "every step" if every == 1 else f"one step in {every}"
