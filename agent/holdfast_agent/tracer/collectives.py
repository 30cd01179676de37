"""A rank's collective trace, read from the ring that it maps; works while the rank is stopped."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from pathlib import Path

import msgspec

from holdfast.events.parts.traces import CollectiveRecord, RankTrace
from holdfast.node.collectives.marks import ask_for_marks
from holdfast.node.collectives.ring_path import ring_path
from holdfast.node.collectives.ring_reader import RingError, RingReader
from holdfast_agent.tracer.recorder import RecorderAnswer

RECORDS_PER_GROUP = 48
"""Waiting ranks of a group are a few operations apart; their progress is stored beside the records."""


def trace_of(ledger: Path, rank: int, node: str, now_ns: int) -> RankTrace:
    """Return the last records of the rank with this ledger, or the reason why they are unreadable."""
    try:
        ring = RingReader(ring_path(ledger))
    except FileNotFoundError:
        return RankTrace(rank=rank, node=node, taken_ns=now_ns, unread="it has no ring of collectives")
    except (RingError, OSError) as error:
        return RankTrace(rank=rank, node=node, taken_ns=now_ns, unread=str(error))
    try:
        return newest(ring.trace(node=node, taken_ns=now_ns))
    except (RingError, OSError) as error:
        return RankTrace(rank=rank, node=node, taken_ns=now_ns, unread=str(error))
    finally:
        ring.close()


def newest(trace: RankTrace) -> RankTrace:
    """Reduce a trace to the last records of each group and those that have not ended."""
    left: dict[tuple[str, bool], int] = {}
    kept: list[CollectiveRecord] = []
    for record in reversed(trace.records):
        key = (record.group, record.is_p2p)
        left[key] = left.get(key, RECORDS_PER_GROUP) - 1
        if left[key] >= 0 or record.state != "completed":
            kept.append(record)
    return msgspec.structs.replace(trace, records=tuple(reversed(kept)))


def marks_of(ledger: Path) -> tuple[CollectiveRecord, ...]:
    """Return what the rank's device runs by its marks; empty without. Takes at most `collective_marks.ANSWER_S`."""
    path = ring_path(ledger)
    try:
        if not ask_for_marks(path):
            return ()
        ring = RingReader(path)
        try:
            return ring.on_device()
        finally:
            ring.close()
    except (RingError, OSError):
        return ()


def marked(device: RankTrace, marks: Sequence[CollectiveRecord]) -> RankTrace:
    """Add the marks of kernels whose start is not recorded to the trace of NCCL's recorder."""
    if not marks:
        return device
    reached = {(mark.group, mark.sequence) for mark in marks if not mark.is_p2p and mark.state == "started"}
    channels: defaultdict[tuple[str, str, int | None], list[bool]] = defaultdict(list)
    for mark in marks:
        if mark.is_p2p:
            channels[mark.group, mark.operation, mark.peer].append(mark.state == "started")
    records: list[CollectiveRecord] = []
    for record in reversed(device.records):
        if record.is_p2p:
            # The two count messages differently but end equally.
            left = channels[record.group, record.operation, record.peer]
            is_reached = left.pop() if left else False
        else:
            is_reached = (record.group, record.sequence) in reached
        is_started = is_reached and record.state == "scheduled"
        records.append(msgspec.structs.replace(record, state="started") if is_started else record)
    return msgspec.structs.replace(device, records=tuple(reversed(records)))


def with_recorders(ring: RankTrace, recorded: RecorderAnswer, marks: Sequence[CollectiveRecord] = ()) -> RankTrace:
    """Add what only the flight recorders and marks have to the trace of a rank's ring."""
    device, host = recorded.device, recorded.host
    if device is not None:
        device = marked(newest(device), marks)
        ring = with_device(ring, device)
        # A group with a backend for each device type has two sequences of one name; training uses the device's.
        host = without(host, _used(device)) if host is not None else None
    return with_recorder(ring, newest(host)) if host is not None else ring


def with_recorder(ring: RankTrace, recorder: RankTrace) -> RankTrace:
    """Add operations that C++ started itself, which only the flight recorder has."""
    if ring.unread:
        return msgspec.structs.replace(recorder, node=ring.node, taken_ns=ring.taken_ns)
    known = {(record.group, record.sequence) for record in ring.records if not record.is_p2p}
    more = [record for record in recorder.records if not record.is_p2p and (record.group, record.sequence) not in known]
    names = {group.name for group in ring.groups}
    return msgspec.structs.replace(
        ring,
        groups=(*ring.groups, *(group for group in recorder.groups if group.name not in names)),
        records=tuple(sorted((*ring.records, *more), key=lambda record: record.created_ns)),
        entered=_highest(ring.entered, recorder.entered),
        completed=_highest(ring.completed, recorder.completed),
    )


def with_device(ring: RankTrace, device: RankTrace) -> RankTrace:
    """Take the recorder's records for groups on its device: it counts operations, the ring only sees their queueing."""
    if ring.unread:
        return msgspec.structs.replace(device, node=ring.node, taken_ns=ring.taken_ns)
    names = _used(device)
    return msgspec.structs.replace(
        ring,
        groups=(
            *(group for group in ring.groups if group.name not in names),
            *(group for group in device.groups if group.name in names),
        ),
        records=tuple(
            sorted(
                (*(record for record in ring.records if record.group not in names), *device.records),
                key=lambda record: record.created_ns,
            )
        ),
        entered={name: last for name, last in ring.entered.items() if name not in names} | device.entered,
        completed={name: last for name, last in ring.completed.items() if name not in names} | device.completed,
    )


def without(trace: RankTrace, groups: Collection[str]) -> RankTrace:
    """Return the trace without these process groups."""
    return msgspec.structs.replace(
        trace,
        groups=tuple(group for group in trace.groups if group.name not in groups),
        records=tuple(record for record in trace.records if record.group not in groups),
        entered={name: last for name, last in trace.entered.items() if name not in groups},
        completed={name: last for name, last in trace.completed.items() if name not in groups},
    )


def _used(trace: RankTrace) -> set[str]:
    return {*trace.entered, *(record.group for record in trace.records)}


def _highest(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    return {name: max(one.get(name, 0), other.get(name, 0)) for name in one | other}
