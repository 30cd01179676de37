"""Traces that go through an event come out as they were, and every reader of JSON has their numbers exactly."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import msgspec

from holdfast.engines.hang.event_times import from_event_times, to_event_times
from holdfast.events.parts.scalars import INTEGER_MAX
from holdfast.events.parts.traces import CollectiveRecord, RankTrace
from holdfast_agent.tracer.collectives import RECORDS_PER_GROUP, newest
from holdfast_agent.tracer.parts import PART_BYTES_MAX, traces_in_parts

NOW_NS = 1_795_316_585_744_046_247


def record(sequence: int, group: str = "0", *, ended: bool = True, name: str = "all_reduce") -> CollectiveRecord:
    began = NOW_NS + sequence * 1_000_003
    return CollectiveRecord(
        group=group,
        sequence=sequence,
        operation=name,
        state="completed" if ended else "scheduled",
        created_ns=began,
        ended_ns=began + 7 if ended else 0,
    )


def test_times_survive_the_way_and_are_small_on_it() -> None:
    traces = (
        RankTrace(rank=0, records=(record(0), record(1, ended=False)), taken_ns=NOW_NS + 10**9),
        RankTrace(rank=1, unread="it has no ring of collectives"),
    )
    origin, on_the_way = to_event_times(traces)
    numbers = [int(number) for number in re.findall(rb"\d+", msgspec.json.encode(on_the_way))]
    assert max(numbers) <= INTEGER_MAX
    assert on_the_way[0].records[0].created_ns > 0 and on_the_way[0].records[1].ended_ns == 0
    assert from_event_times(origin, on_the_way) == traces


def test_traces_without_any_time_are_carried_too() -> None:
    traces = (RankTrace(rank=0), RankTrace(rank=1, unread="x"))
    origin, on_the_way = to_event_times(traces)
    assert origin == datetime(1970, 1, 1, tzinfo=UTC)
    assert from_event_times(origin, on_the_way) == traces


def test_of_each_group_the_last_operations_are_kept_and_those_that_have_not_ended() -> None:
    old = record(1, ended=False)
    trace = RankTrace(rank=0, records=(old, *(record(at) for at in range(2, 200)), record(5, "1")))
    kept = newest(trace)
    assert kept.records[0] == old, "something that was begun long ago and never ended is what matters"
    assert [one.sequence for one in kept.records[1:-1]] == list(range(200 - RECORDS_PER_GROUP, 200))
    assert kept.records[-1].group == "1"


def test_parts_are_small_and_lose_nothing() -> None:
    items = [RankTrace(rank=rank, unread="x" * 90_000) for rank in range(20)]
    parts = traces_in_parts(items)
    assert [item for part in parts for item in part] == items
    assert len(parts) > 1 and all(len(msgspec.json.encode(part)) <= PART_BYTES_MAX + 1000 for part in parts)
    assert traces_in_parts(()) == [()]
