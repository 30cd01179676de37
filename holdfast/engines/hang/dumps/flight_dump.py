"""One rank's Flight Recorder dump (PyTorch), converted to a `RankTrace`. Pure.

- On the CPU (gloo) `state` stays `scheduled`; `retired` shows that an operation has ended.
- `pg_status` counts operations by the id of the group on this rank, `pg_config` names groups. For a group with
  point-to-point operations it holds the number of the last one of either kind. Records have precedence over it.
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
"""Tensors kept of one operation; more add no information."""

_PEERS: Final = re.compile(r"(send|recv)\s+(\d+)\s*(->|<-)\s*(\d+)")


def trace_of(dump: FlightDump, rank: int) -> RankTrace:
    """Convert a rank's dump to the trace that the analysis reads."""
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
    """Operations that a group has counted on a rank up to its last record."""

    collectives: int
    messages: int

    def are_messages(self, value: int) -> bool | None:
        """True if a counter of either kind counts messages; None if it may count both."""
        if self.messages and value > self.collectives and abs(value - self.messages) <= value - self.collectives:
            return True
        return False if not self.messages or value > self.messages else None


def _counts(entries: Sequence[FlightRecord]) -> dict[str, _Counts]:
    return {str(entry.pg_id): _Counts(entry.collectives or 0, entry.p2p_seq_id or 0) for entry in entries}


def _messages_done(dump: FlightDump, counts: Mapping[str, _Counts]) -> dict[str, int]:
    """Return, by group id, the last message that `pg_status` reports as ended."""
    return {
        number: status.last_completed_collective
        for number, status in ((str(key), status) for key, status in dump.pg_status.items())
        if number in counts and counts[number].are_messages(status.last_completed_collective)
    }


@lru_cache(maxsize=4096)
def _operation(name: str) -> tuple[str, Literal["send", "recv"] | None, int]:
    """Return the operation without its backend; for point-to-point, also its end and the peer within the group."""
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
    # Measured by device events; a failed device can report any value.
    return int(milliseconds * 1e6) if milliseconds is not None and 0 < milliseconds < _DURATION_MS_MAX else 0


def _sizes(parts: Iterable[list[list[int]]]) -> tuple[tuple[int, ...], ...]:
    return tuple(map(tuple, islice(chain.from_iterable(parts), TENSORS_MAX)))


def _progress(
    dump: FlightDump,
    records: Sequence[CollectiveRecord],
    groups: dict[str, ProcessGroup],
    counts: Mapping[str, _Counts],
) -> tuple[dict[str, int], dict[str, int]]:
    """Return for each group the last collective begun and the last one ended, by its records and `pg_status`."""
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
        for count, values in (
            (status.last_enqueued_collective, entered),
            (status.last_completed_collective, completed),
        ):
            if of_both.are_messages(count) is False:
                values[known] = max(values.get(known, -1), count)
    return {name: last for name, last in entered.items() if last >= 0}, {
        name: last for name, last in completed.items() if last >= 0
    }


def _names_of_ids(dump: FlightDump, groups: dict[str, ProcessGroup]) -> dict[str, str]:
    """Map a group's id on this rank to its name: as records show it, else by the order in which both count up."""
    names = {str(entry.pg_id): _group_of(entry)[0] for entry in dump.entries}
    ids = sorted(str(number) for number in dump.pg_status)
    if len(ids) == len(groups) and all(text.isdecimal() for text in (*ids, *groups)):
        by_order = dict(zip(sorted(ids, key=int), sorted(groups, key=int), strict=True))
        if all(by_order.get(number) == name for number, name in names.items()):
            return by_order
    return names
