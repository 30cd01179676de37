"""State of operations that were issued together, from the `coalesced` record that follows them. Pure.

Records inside a coalesced operation never change their state; the record that ends them has their state. A dump of
active operations leaves that record out once it has ended, and keeps the records inside as if they were still pending.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from holdfast.engines.hang.dumps.flight_record import FlightRecord
from holdfast.events.parts.traces import RecordState

_WHOLE = {"ALLGATHER_coalesced": "all_gather", "REDUCE_SCATTER_coalesced": "reduce_scatter"}
"""Operations that issue one broadcast or reduction per member where their shares differ in size."""

_Key = tuple[str, bool, int]


class IssuedOperation(NamedTuple):
    """One operation as its members know it. `entries`: its records, several for a coalesced collective. `timed`: the
    record with its times, which is the record itself or the one that it was coalesced into."""

    entries: tuple[FlightRecord, ...]
    state: RecordState
    profiling_name: str
    timed: FlightRecord


def issued_operations(entries: Sequence[FlightRecord], messages_done: Mapping[str, int]) -> list[IssuedOperation]:
    """Convert records to operations, oldest first. `messages_done`: by group id, the last message that has ended."""
    inside: defaultdict[_Key, list[int]] = defaultdict(list)
    ended_by: dict[int, FlightRecord] = {}
    parts_of: dict[int, list[FlightRecord]] = {}
    for index, entry in enumerate(entries):
        key = (str(entry.pg_id), entry.is_p2p, entry.sequence)
        if not entry.profiling_name.endswith("coalesced"):
            inside[key].append(index)
        elif parts := inside.pop(key, None):
            ended_by.update(dict.fromkeys(parts, entry))
            parts_of[index] = [entries[part] for part in parts]
    batching = {str(end.pg_id) for end in ended_by.values() if end.is_p2p}
    gone = _gone(entries, inside, batching, messages_done)
    found: list[IssuedOperation] = []
    for index, entry in enumerate(entries):
        if index in parts_of:
            if not entry.is_p2p:
                found.append(_merged(parts_of[index], entry))
        elif index not in ended_by:
            state = "completed" if index in gone else state_of(entry)
            found.append(IssuedOperation((entry,), state, entry.profiling_name, entry))
        elif entry.is_p2p:
            end = ended_by[index]
            found.append(IssuedOperation((entry,), state_of(end), entry.profiling_name, end))
    return found


def state_of(entry: FlightRecord) -> RecordState:
    """Return how far the operation of a record is: scheduled, started or completed."""
    if entry.state == "completed" or entry.retired or entry.time_discovered_completed_ns:
        return "completed"
    return "started" if entry.state == "started" or entry.time_discovered_started_ns else "scheduled"


def _gone(
    entries: Sequence[FlightRecord],
    unended: Mapping[_Key, list[int]],
    batching: set[str],
    messages_done: Mapping[str, int],
) -> set[int]:
    """Return the records inside coalesced operations that have ended and were left out of the dump.

    Records of one sequence are inside one coalesced operation; a single message is inside one if its group sends in
    batches. For example, a dump of active operations has these records, all with the state "scheduled":

        send, sequence 7
        send, sequence 7
        all_reduce, sequence 8

    The record that ends the two sends was issued before the all_reduce. So it can only be missing because it has ended,
    and with it the sends. The same holds if a later message of the group has ended.
    """
    # A dump with completed records was not limited to active operations: nothing is left out.
    if any(state_of(entry) == "completed" for entry in entries):
        return set()
    last = len(entries) - 1
    batching = batching | {group for (group, is_p2p, _), parts in unended.items() if is_p2p and len(parts) > 1}
    # Outside of a batch, a message that has ended would itself be left out of the dump.
    batching |= {group for group, done in messages_done.items() if (group, True, done) in unended}
    gone: set[int] = set()
    for (group, is_p2p, sequence), parts in unended.items():
        is_inside = len(parts) > 1 or (is_p2p and group in batching)
        if is_inside and (last not in parts or (is_p2p and sequence <= messages_done.get(group, -1))):
            gone.update(parts)
    return gone


def _merged(parts: Sequence[FlightRecord], end: FlightRecord) -> IssuedOperation:
    """Merge collectives that were issued as one: none ends on any rank before all have."""
    backend, _, name = end.profiling_name.rpartition(":")
    names = {part.profiling_name for part in parts}
    whole = names.pop() if len(names) == 1 else ""
    if name != "coalesced" or not whole or whole.endswith("_oop"):
        whole = f"{backend}:{_WHOLE.get(name, name)}"
    return IssuedOperation(tuple(parts), state_of(end), whole, end)
