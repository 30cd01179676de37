"""Times of traces relative to an origin, as events carry them. Pure.

Nanoseconds since 1970 exceed the integers that every JSON reader keeps exact.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

import msgspec

from holdfast.events.parts.traces import RankTrace

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIME_MAX_NS = (1 << 63) - 1
_TIMES = ("created_ns", "started_ns", "ended_ns")


def to_event_times(traces: Iterable[RankTrace]) -> tuple[datetime, tuple[RankTrace, ...]]:
    """Return the origin and the traces with times since it. 0 stays 0: unknown, or not yet."""
    traces = tuple(traces)
    known = [time for trace in traces for time in _times(trace) if time]
    # One whole microsecond before the first time, so that no known time becomes 0.
    origin_us = max(0, min(known, default=0) // 1000 - 1)
    return _EPOCH + timedelta(microseconds=origin_us), tuple(_shifted(trace, -origin_us * 1000) for trace in traces)


def from_event_times(origin: datetime, traces: Iterable[RankTrace]) -> tuple[RankTrace, ...]:
    """Return the traces with times since 1970."""
    by_ns = (origin - _EPOCH) // timedelta(microseconds=1) * 1000
    return tuple(_shifted(trace, by_ns) for trace in traces)


def _times(trace: RankTrace) -> list[int]:
    return [trace.taken_ns, *(getattr(record, name) for record in trace.records for name in _TIMES)]


def _shifted(trace: RankTrace, by_ns: int) -> RankTrace:
    records = tuple(
        msgspec.structs.replace(
            record, **{name: _within(time + by_ns) for name in _TIMES if (time := getattr(record, name))}
        )
        for record in trace.records
    )
    return msgspec.structs.replace(
        trace, records=records, taken_ns=_within(trace.taken_ns + by_ns) if trace.taken_ns else 0
    )


def _within(time_ns: int) -> int:
    # A rank may have written any number in place of a time.
    return max(-_TIME_MAX_NS, min(time_ns, _TIME_MAX_NS))
