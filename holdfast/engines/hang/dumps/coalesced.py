"""Operations that are issued together: what became of each, from the `coalesced` record that follows them. Pure.

Those inside never change their state; theirs is that of the record that ends them. A dump of active operations only
leaves that record out once it has ended, and keeps those inside it as if they were still to come.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from holdfast.engines.hang.dumps.flight_record import FlightRecord
from holdfast.events.parts.traces import RecordState

_WHOLE = {"ALLGATHER_coalesced": "all_gather", "REDUCE_SCATTER_coalesced": "reduce_scatter"}
"""What issues one broadcast or reduction for each member, where their shares differ in size."""

_Key = tuple[str, bool, int]


class IssuedOperation(NamedTuple):
    """One operation as its members know it: its entries (several of a collective that was coalesced), and what tells
    of its times: itself, or what it was coalesced into.
    """

    entries: tuple[FlightRecord, ...]
    state: RecordState
    profiling_name: str
    timed: FlightRecord


def issued_operations(entries: Sequence[FlightRecord], messages_done: Mapping[str, int]) -> list[IssuedOperation]:
    """What the entries stand for, oldest first. `messages_done`: by id of a group its last message that has ended."""
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
    """How far one operation came."""
    if entry.state == "completed" or entry.retired or entry.time_discovered_completed_ns:
        return "completed"
    return "started" if entry.state == "started" or entry.time_discovered_started_ns else "scheduled"


def _gone(
    entries: Sequence[FlightRecord],
    unended: Mapping[_Key, list[int]],
    batching: set[str],
    messages_done: Mapping[str, int],
) -> set[int]:
    """Entries that were part of a coalesced operation which has ended and was left out with all that had."""
    if any(state_of(entry) == "completed" for entry in entries):
        return set()
    last = len(entries) - 1
    batching = batching | {group for (group, is_p2p, _), parts in unended.items() if is_p2p and len(parts) > 1}
    # A message that has ended would have been left out by itself, were it not inside of something.
    batching |= {group for group, done in messages_done.items() if (group, True, done) in unended}
    gone: set[int] = set()
    for (group, is_p2p, sequence), parts in unended.items():
        is_inside = len(parts) > 1 or (is_p2p and group in batching)
        if is_inside and (last not in parts or (is_p2p and sequence <= messages_done.get(group, -1))):
            gone.update(parts)
    return gone


def _merged(parts: Sequence[FlightRecord], end: FlightRecord) -> IssuedOperation:
    """Collectives issued as one: nobody is through with any of them before the others are."""
    backend, _, name = end.profiling_name.rpartition(":")
    names = {part.profiling_name for part in parts}
    whole = names.pop() if len(names) == 1 else ""
    if name != "coalesced" or not whole or whole.endswith("_oop"):
        whole = f"{backend}:{_WHOLE.get(name, name)}"
    return IssuedOperation(tuple(parts), state_of(end), whole, end)
