"""What stands for what in one rank's dump of PyTorch's Flight Recorder. Pure.

- On the CPU (gloo) `state` stays `scheduled`; `retired` tells that an operation has ended.
- `pg_status` counts operations by the id of the group on this rank, `pg_config` names groups; and of a group with
  point-to-point operations it holds the number of whichever came last, of one kind or the other. The records are
  believed first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain, islice
from typing import Final, Literal, NamedTuple

from holdfast.engines.hang.dumps.coalesced import IssuedOperation, issued_operations
from holdfast.engines.hang.dumps.flight_record import FlightDump, FlightRecord
from holdfast.events.parts.traces import CollectiveRecord, Frame, ProcessGroup, RankTrace

FRAMES_MAX: Final = 64
_DURATION_MS_MAX: Final = 1e9
TENSORS_MAX: Final = 4096
"""Of one operation; the rest says nothing new."""

_PEERS: Final = re.compile(r"(send|recv)\s+(\d+)\s*(->|<-)\s*(\d+)")


def trace_of(dump: FlightDump, rank: int) -> RankTrace:
    """The dump of `rank` in the words of `observed`."""
    groups = {
        (group.name or key): ProcessGroup(name=group.name or key, description=group.desc, ranks=group.members())
        for key, group in dump.pg_config.items()
        if group.name or key
    }
    for entry in dump.entries:
        name, description = _group_of(entry)
        if name not in groups:
            groups[name] = ProcessGroup(name=name, description=description)
    counts = _counts(dump.entries)
    records = tuple(
        _record(each, groups[_group_of(each.entries[0])[0]], rank)
        for each in issued_operations(dump.entries, _messages_done(dump, counts))
    )
    entered, completed = _progress(dump, records, groups, counts)
    created = [entry.time_created_ns or 0 for entry in dump.entries]
    return RankTrace(
        rank=rank,
        groups=tuple(groups.values()),
        records=records,
        entered=entered,
        completed=completed,
        taken_ns=max(created, default=0),
    )


def _group_of(entry: FlightRecord) -> tuple[str, str]:
    names = entry.process_group
    if not names:
        return str(entry.pg_id), ""
    return names[0], names[1] if len(names) > 1 else ""


class _Counts(NamedTuple):
    """What a group has counted on a rank by its last record."""

    collectives: int
    messages: int

    def are_messages(self, value: int) -> bool | None:
        """Whether a counter of either kind counts messages; None: it may be of both."""
        if self.messages and value > self.collectives and abs(value - self.messages) <= value - self.collectives:
            return True
        return False if not self.messages or value > self.messages else None


def _counts(entries: Sequence[FlightRecord]) -> dict[str, _Counts]:
    """By the id of a group."""
    return {str(entry.pg_id): _Counts(entry.collectives or 0, entry.p2p_seq_id or 0) for entry in entries}


def _messages_done(dump: FlightDump, counts: Mapping[str, _Counts]) -> dict[str, int]:
    """By id of a group the last message that `pg_status` says has ended."""
    return {
        number: status.last_completed_collective
        for number, status in ((str(key), status) for key, status in dump.pg_status.items())
        if number in counts and counts[number].are_messages(status.last_completed_collective)
    }


@lru_cache(maxsize=4096)
def _operation(name: str) -> tuple[str, Literal["send", "recv"] | None, int]:
    """The operation without its backend; for point-to-point ones which end this is, and the peer in the group."""
    plain = name.partition(":")[2] or name
    if match := _PEERS.match(plain):
        return match[1], "send" if match[1] == "send" else "recv", int(match[4])
    return plain, None, -1


def _record(each: IssuedOperation, group: ProcessGroup, rank: int) -> CollectiveRecord:
    entry = each.entries[0]
    operation, end, peer_in_group = _operation(each.profiling_name)
    is_p2p = entry.is_p2p or end is not None
    peer = None
    if end is not None:
        if peer_in_group < len(group.ranks):
            peer = group.ranks[peer_in_group]
        elif not group.ranks and (group.description == "default_pg" or group.name == "0"):
            peer = peer_in_group
    if is_p2p and peer is None and len(group.ranks) == 2:
        peer = next((other for other in group.ranks if other != rank), None)
    return CollectiveRecord(
        group=group.name,
        sequence=entry.sequence,
        operation=operation,
        state=each.state,
        is_p2p=is_p2p,
        peer=peer,
        input_sizes=_sizes(part.input_sizes for part in each.entries),
        output_sizes=_sizes(part.output_sizes for part in each.entries),
        dtype=(entry.input_dtypes or entry.output_dtypes or [""])[0],
        created_ns=entry.time_created_ns or 0,
        started_ns=each.timed.time_discovered_started_ns or 0,
        ended_ns=each.timed.time_discovered_completed_ns or 0,
        took_ns=_ns(each.timed.duration_ms),
        frames=tuple(
            Frame(function=frame.name, file=frame.filename, line=frame.line) for frame in entry.frames[:FRAMES_MAX]
        ),
    )


def _ns(milliseconds: float | None) -> int:
    # By events of the device, which may be anything if it has failed.
    return int(milliseconds * 1e6) if milliseconds is not None and 0 < milliseconds < _DURATION_MS_MAX else 0


def _sizes(parts: Iterable[list[list[int]]]) -> tuple[tuple[int, ...], ...]:
    return tuple(map(tuple, islice(chain.from_iterable(parts), TENSORS_MAX)))


def _progress(
    dump: FlightDump,
    records: Sequence[CollectiveRecord],
    groups: dict[str, ProcessGroup],
    counts: Mapping[str, _Counts],
) -> tuple[dict[str, int], dict[str, int]]:
    """For each group the collectives begun and ended, by its records and by what `pg_status` says."""
    entered: dict[str, int] = {}
    completed: dict[str, int] = {}
    for entry in dump.entries:
        if entry.collectives is not None:
            name = _group_of(entry)[0]
            entered[name] = max(entered.get(name, 0), entry.collectives)
    for record in records:
        if record.state == "completed" and not record.is_p2p:
            completed[record.group] = max(completed.get(record.group, 0), record.sequence)
    names = _names_of_ids(dump, groups)
    for number, status in dump.pg_status.items():
        known = names.get(str(number))
        if known is None:
            continue
        of_both = counts.get(str(number), _Counts(0, 0))
        for said, values in (
            (status.last_enqueued_collective, entered),
            (status.last_completed_collective, completed),
        ):
            if of_both.are_messages(said) is False:
                values[known] = max(values.get(known, -1), said)
    return {name: last for name, last in entered.items() if last >= 0}, {
        name: last for name, last in completed.items() if last >= 0
    }


def _names_of_ids(dump: FlightDump, groups: dict[str, ProcessGroup]) -> dict[str, str]:
    """From a group's id on this rank to its name: as records show it, and else in the order in which both count up."""
    names = {str(entry.pg_id): _group_of(entry)[0] for entry in dump.entries}
    ids = sorted(str(number) for number in dump.pg_status)
    if len(ids) == len(groups) and all(text.isdecimal() for text in (*ids, *groups)):
        by_order = dict(zip(sorted(ids, key=int), sorted(groups, key=int), strict=True))
        if all(by_order.get(number) == name for number, name in names.items()):
            return by_order
    return names
