"""What stands for what in one rank's dump of PyTorch's Flight Recorder. Pure.

- On the CPU (gloo) `state` stays `scheduled`; `retired` tells that an operation has ended.
- Nor do operations inside a coalesced one change their state: theirs is that of the `coalesced` record after them.
- `pg_status` counts operations by the id of the group on this rank, `pg_config` names groups; and of a group with
  point-to-point operations it holds the number of whichever came last, of one kind or the other. The records are
  believed first.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, Literal

import msgspec

from holdfast.hangs.observed import CollectiveRecord, Frame, ProcessGroup, RankTrace, RecordState

FRAMES_MAX: Final = 64
_DURATION_MS_MAX: Final = 1e9
TENSORS_MAX: Final = 4096
"""Of one operation; the rest says nothing new."""

_PEERS: Final = re.compile(r"(send|recv)\s+(\d+)\s*(->|<-)\s*(\d+)")


@lru_cache(maxsize=65_536)
def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.strip("[]() ").split(",") if number.strip())


_LARGE_BYTES: Final = 4096
_LARGE_KEPT: Final = 8
_large: list[tuple[str, tuple[int, ...]]] = []


def _members(text: str) -> tuple[int, ...]:
    """The numbers in a text like a list; equal texts give the same tuple."""
    if len(text) < _LARGE_BYTES:
        return _numbers(text)
    # The list of a whole job comes once for each rank: 32,768 times 200 kB. Comparing is ten times as fast as hashing.
    for known, numbers in _large:
        if known == text:
            return numbers
    found = tuple(int(number) for number in text.strip("[]() ").split(",") if number.strip())
    _large.insert(0, (text, found))
    del _large[_LARGE_KEPT:]
    return found


class DumpedGroup(msgspec.Struct, frozen=True):
    """A process group; `ranks` is a list, or a text like one."""

    name: str = ""
    desc: str = ""
    ranks: str | list[int] = ""

    def members(self) -> tuple[int, ...]:
        """The global ranks; none: not told.

        Raises:
            ValueError: a text that is no list of numbers.
        """
        return _members(self.ranks) if isinstance(self.ranks, str) else tuple(self.ranks)


class DumpedStatus(msgspec.Struct, frozen=True):
    """How far a group came on this rank; -1: nothing yet."""

    last_enqueued_collective: int = -1
    last_started_collective: int = -1
    last_completed_collective: int = -1


class DumpedFrame(msgspec.Struct, frozen=True):
    name: str = ""
    filename: str = ""
    line: int = 0


class Entry(msgspec.Struct, frozen=True):
    """One operation. `seq_id` is what versions before 2.1 call `collective_seq_id`."""

    profiling_name: str
    pg_id: int | str = -1
    process_group: list[str] = []
    collective_seq_id: int | None = None
    seq_id: int | None = None
    p2p_seq_id: int | None = None
    op_id: int | None = None
    input_sizes: list[list[int]] = []
    output_sizes: list[list[int]] = []
    input_dtypes: list[str] = []
    output_dtypes: list[str] = []
    state: str = "scheduled"
    time_created_ns: int | None = None
    time_discovered_started_ns: int | None = None
    time_discovered_completed_ns: int | None = None
    duration_ms: float | None = None
    retired: bool = False
    is_p2p: bool = False
    frames: list[DumpedFrame] = []

    @property
    def sequence(self) -> int:
        collective = self.seq_id if self.collective_seq_id is None else self.collective_seq_id
        return (self.p2p_seq_id if self.is_p2p else collective) or 0


class Dump(msgspec.Struct, frozen=True):
    """One rank's dump."""

    version: str | float = ""
    rank: int | None = None
    pg_config: dict[str, DumpedGroup] = {}
    pg_status: dict[str | int, DumpedStatus] = {}
    entries: list[Entry] = []


def trace_of(dump: Dump, rank: int) -> RankTrace:
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
    states = _states(dump.entries)
    records = tuple(
        _record(entry, state, groups[_group_of(entry)[0]], rank)
        for entry, state in zip(dump.entries, states, strict=True)
        if state is not None
    )
    entered, completed = _progress(dump, records, groups)
    created = [entry.time_created_ns or 0 for entry in dump.entries]
    return RankTrace(
        rank=rank,
        groups=tuple(groups.values()),
        records=records,
        entered=entered,
        completed=completed,
        taken_ns=max(created, default=0),
    )


def _group_of(entry: Entry) -> tuple[str, str]:
    names = entry.process_group
    if not names:
        return str(entry.pg_id), ""
    return names[0], names[1] if len(names) > 1 else ""


def _states(entries: Sequence[Entry]) -> list[RecordState | None]:
    """The state of each; None: a record that only ends a coalesced operation."""
    states: list[RecordState | None] = [_state(entry) for entry in entries]
    parts: dict[tuple[object, ...], list[int]] = {}
    for index, entry in enumerate(entries):
        if entry.profiling_name.endswith(":coalesced"):
            inside = parts.pop((entry.pg_id, entry.is_p2p, entry.sequence), [])
            for part in inside:
                states[part] = states[index]
            if inside:
                states[index] = None
        else:
            parts.setdefault((entry.pg_id, entry.is_p2p, entry.sequence), []).append(index)
    return states


def _state(entry: Entry) -> RecordState:
    if entry.state == "completed" or entry.retired or entry.time_discovered_completed_ns:
        return "completed"
    return "started" if entry.state == "started" or entry.time_discovered_started_ns else "scheduled"


@lru_cache(maxsize=4096)
def _operation(name: str) -> tuple[str, Literal["send", "recv"] | None, int]:
    """The operation without its backend; for point-to-point ones which end this is, and the peer in the group."""
    plain = name.partition(":")[2] or name
    if match := _PEERS.match(plain):
        return match[1], "send" if match[1] == "send" else "recv", int(match[4])
    return plain, None, -1


def _record(entry: Entry, state: RecordState, group: ProcessGroup, rank: int) -> CollectiveRecord:
    operation, end, peer_in_group = _operation(entry.profiling_name)
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
        state=state,
        is_p2p=is_p2p,
        peer=peer,
        input_sizes=tuple(map(tuple, entry.input_sizes[:TENSORS_MAX])),
        output_sizes=tuple(map(tuple, entry.output_sizes[:TENSORS_MAX])),
        dtype=(entry.input_dtypes or entry.output_dtypes or [""])[0],
        created_ns=entry.time_created_ns or 0,
        started_ns=entry.time_discovered_started_ns or 0,
        ended_ns=entry.time_discovered_completed_ns or 0,
        took_ns=_ns(entry.duration_ms),
        frames=tuple(
            Frame(function=frame.name, file=frame.filename, line=frame.line) for frame in entry.frames[:FRAMES_MAX]
        ),
    )


def _ns(milliseconds: float | None) -> int:
    # By events of the device, which may be anything if it has failed.
    return int(milliseconds * 1e6) if milliseconds is not None and 0 < milliseconds < _DURATION_MS_MAX else 0


def _progress(
    dump: Dump, records: Sequence[CollectiveRecord], groups: dict[str, ProcessGroup]
) -> tuple[dict[str, int], dict[str, int]]:
    """For each group the collectives begun and ended; of groups without records what `pg_status` says."""
    entered: dict[str, int] = {}
    completed: dict[str, int] = {}
    mixed: set[str] = set()
    for entry in dump.entries:
        name = _group_of(entry)[0]
        collective = entry.seq_id if entry.collective_seq_id is None else entry.collective_seq_id
        if collective is not None:
            entered[name] = max(entered.get(name, 0), collective)
        if entry.is_p2p or (entry.op_id is not None and entry.op_id != collective):
            mixed.add(name)
    for record in records:
        if record.state == "completed" and not record.is_p2p:
            completed[record.group] = max(completed.get(record.group, 0), record.sequence)
    names = _names_of_ids(dump, groups)
    for number, status in dump.pg_status.items():
        known = names.get(str(number))
        if known is None or known in mixed:
            continue
        entered[known] = max(entered.get(known, -1), status.last_enqueued_collective)
        completed[known] = max(completed.get(known, -1), status.last_completed_collective)
    return {name: last for name, last in entered.items() if last >= 0}, {
        name: last for name, last in completed.items() if last >= 0
    }


def _names_of_ids(dump: Dump, groups: dict[str, ProcessGroup]) -> dict[str, str]:
    """From a group's id on this rank to its name: as records show it, and else in the order in which both count up."""
    names = {str(entry.pg_id): _group_of(entry)[0] for entry in dump.entries}
    ids = sorted(str(number) for number in dump.pg_status)
    if len(ids) == len(groups) and all(text.isdecimal() for text in (*ids, *groups)):
        by_order = dict(zip(sorted(ids, key=int), sorted(groups, key=int), strict=True))
        if all(by_order.get(number) == name for number, name in names.items()):
            return by_order
    return names
