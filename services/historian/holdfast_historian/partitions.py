"""Daily partitions: the days that get one, and those that are dropped. Pure.

Every day near the present has one. An event whose clock is far off goes to the default partition instead: one
node with a broken clock must not create partitions for two thousand years.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta

import msgspec

_NAME = re.compile(r"events_(\d{4})_(\d{2})_(\d{2})")


class PartitionPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Limits in days.

    `past_days_max` lies above the 30 days that the stream DECISIONS keeps: a historian that starts on an empty
    database reads them all again. `keep_days` None keeps everything.
    """

    ahead_days: int = 2
    future_days_max: int = 7
    past_days_max: int = 60
    keep_days: int | None = None

    def __post_init__(self) -> None:
        if self.keep_days is not None and self.keep_days < 1:
            raise ValueError(f"keep_days = {self.keep_days} must be at least 1: today's events cannot be dropped")
        if not 1 <= self.ahead_days <= self.future_days_max:
            raise ValueError(
                f"ahead_days = {self.ahead_days} must lie between 1 and future_days_max = {self.future_days_max}"
            )


SETTLED = timedelta(days=2)
"""Each day on which a historian runs gets a partition."""


def day_of(name: str) -> date | None:
    """Return the day of a partition's table; None for the default partition and for foreign tables."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    try:
        return date(*(int(part) for part in match.groups()))
    except ValueError:
        return None


def days_ahead(now: datetime, policy: PartitionPolicy) -> list[date]:
    """Return the days whose partition is made before any of their events arrives, today first."""
    today = now.astimezone(UTC).date()
    return [today + timedelta(days=ahead) for ahead in range(policy.ahead_days + 1)]


def missing(days: Iterable[date], existing: frozenset[date], now: datetime, policy: PartitionPolicy) -> list[date]:
    """Return those of `days` that need a partition and have none. Events of other days go to the default partition."""
    today = now.astimezone(UTC).date()
    first = today - timedelta(days=min(policy.past_days_max, policy.keep_days or policy.past_days_max))
    last = today + timedelta(days=policy.future_days_max)
    return sorted(day for day in set(days) - existing if first <= day <= last)


def oldest_kept(existing: frozenset[date], now: datetime, policy: PartitionPolicy) -> datetime | None:
    """Return the moment before which events are dropped; None: all are kept.

    Nothing is dropped before this clock has shown the present days for `SETTLED`: with one that jumps a year ahead, all
    events would seem to be old.
    """
    if policy.keep_days is None or now.astimezone(UTC).date() - SETTLED not in existing:
        return None
    midnight = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return midnight - timedelta(days=policy.keep_days)


def expired(existing: frozenset[date], now: datetime, policy: PartitionPolicy) -> list[date]:
    oldest = oldest_kept(existing, now, policy)
    return [] if oldest is None else sorted(day for day in existing if day < oldest.date())
