"""Progress of each rank in each process group, from the ranks' traces. Pure.

A group is identified by its name, and by its members where several groups have one name. If no rank lists the members,
they are the ranks that mention the group.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from typing import Final

import msgspec

from holdfast.events.parts.traces import CollectiveRecord, RankTrace
from holdfast.topology import Mesh

_ONE_SIDED: Final = frozenset({"broadcast", "_broadcast_oop", "reduce", "_reduce_oop", "gather", "scatter"})
"""Operations that can end on the root, or on all but the root, before other ranks have joined."""

_PAIRWISE: Final = frozenset({"all_to_all", "alltoall", "all_to_all_single", "all_to_all_v_single"})
"""Operations that can end on a member before others have joined with which it exchanges nothing (idle experts)."""

UNKNOWN: Final = "collective"
"""Name of an operation that only a counter shows."""

_LOST_MAX: Final = 64


def is_recorded(record: CollectiveRecord) -> bool:
    """True if the operation has a record, not only a count."""
    return record.operation != UNKNOWN


def is_pairwise(operation: str) -> bool:
    return operation in _PAIRWISE


def ends_together(operation: str) -> bool:
    """True if `operation` ends on no rank before all have joined."""
    return operation not in _ONE_SIDED and operation != UNKNOWN


class GroupProgress(msgspec.Struct):
    """A process group."""

    key: str
    name: str
    description: str = ""
    ranks: tuple[int, ...] = ()
    has_p2p: bool = False
    is_inferred: bool = False
    """True if no rank lists the members; they are the ranks that mention the group."""
    kind: int = 0
    """Equal for groups that do the same work elsewhere: same description, and members equally far apart."""
    entered: dict[int, int] = {}
    """Sequence number of the last collective begun, by rank."""
    done: dict[int, int] = {}
    """Sequence number of the last collective ended, by rank."""
    messages: dict[int, int] = {}
    """Number of the last point-to-point operation in the rank's records, by rank."""

    def done_by_any(self) -> int:
        return max(self.done.values(), default=-1)

    def entered_by_all(self) -> int:
        """Return the last collective that all ranks with a known count have begun."""
        return min(self.entered.values(), default=-1)


class PendingOperation(msgspec.Struct, frozen=True):
    """An operation that a rank has begun and that has not ended there."""

    group: GroupProgress
    record: CollectiveRecord


class Progress(msgspec.Struct):
    """All groups, and what is pending on each rank in the order in which it began it. `local`: by rank, its groups by
    name. `clipped`: ranks whose records do not reach back to all that is pending."""

    groups: dict[str, GroupProgress]
    pending: dict[int, list[PendingOperation]]
    local: dict[int, dict[str, GroupProgress]]
    clipped: set[int]

    @property
    def traced(self) -> Collection[int]:
        return self.local.keys()

    def silent(self) -> list[int]:
        """Return group members without any trace."""
        return sorted({rank for group in self.groups.values() for rank in group.ranks} - self.local.keys())


def progress_of(traces: Sequence[RankTrace], mesh: Mesh | None) -> Progress:
    """Combine the ranks' traces. O(records)."""
    readable = [trace for trace in traces if not trace.unread]
    groups, local = _groups(readable, mesh)
    pending: dict[int, list[PendingOperation]] = {}
    clipped: set[int] = set()
    for trace in readable:
        names = local[trace.rank]
        pending[trace.rank] = waits = []
        through = _through(trace)
        mentioned: set[str] = set()
        first: dict[str, int] = {}
        lost = list(_lost(trace))
        states = [record.state for record in trace.records]
        if lost or (states and states[0] != "completed" and ("completed" in states or not trace.completed)):
            clipped.add(trace.rank)
        for record in lost:
            waits.append(PendingOperation(names[record.group], record))
            first.setdefault(record.group, record.sequence)
        for record in trace.records:
            mentioned.add(record.group)
            group = names[record.group]
            if record.is_p2p:
                group.has_p2p = True
                group.messages[trace.rank] = max(group.messages.get(trace.rank, -1), record.sequence)
                ended = record.sequence <= through.get((record.group, record.operation, record.peer), -1)
            else:
                ended = record.sequence <= trace.completed.get(record.group, -1)
                group.entered[trace.rank] = max(group.entered.get(trace.rank, -1), record.sequence)
            if record.state == "completed" or ended:
                continue
            waits.append(PendingOperation(group, record))
            if not record.is_p2p:
                first.setdefault(record.group, record.sequence)
        for name in mentioned:
            done = trace.completed.get(name, -1)
            if done >= 0 or trace.rank not in clipped:
                # Operations of a group end in order, so all before the first pending one have ended.
                done = max(done, first.get(name, 0) - 1)
            names[name].done[trace.rank] = max(names[name].done.get(trace.rank, -1), done)
            names[name].entered[trace.rank] = max(names[name].entered.get(trace.rank, -1), trace.entered.get(name, -1))
    for trace in readable:
        _add_counters(trace, local[trace.rank])
    kinds: dict[tuple[str, tuple[int, ...]], int] = {}
    for group in groups.values():
        if not group.ranks:
            group.ranks = tuple(sorted(group.entered))
            group.is_inferred = True
        apart = tuple(rank - group.ranks[0] for rank in group.ranks)
        group.kind = kinds.setdefault((group.description or group.name, apart), len(kinds))
    return Progress(groups, pending, local, clipped)


def _lost(trace: RankTrace) -> Iterator[CollectiveRecord]:
    """Yield collectives that are pending by the counters and older than all remaining records of their group."""
    oldest: dict[str, CollectiveRecord] = {}
    for record in trace.records:
        if not record.is_p2p:
            oldest.setdefault(record.group, record)
    for group, entered in trace.entered.items():
        done, first = trace.completed.get(group, -1), oldest.get(group)
        if done >= 0 and (first is None or first.state != "completed"):
            until = entered + 1 if first is None else first.sequence
            for sequence in range(done + 1, min(until, done + 1 + _LOST_MAX)):
                yield CollectiveRecord(group=group, sequence=sequence, operation=UNKNOWN)


def _through(trace: RankTrace) -> dict[tuple[str, str, int | None], int]:
    """Return the last ended point-to-point operation of each channel; those before it have ended as well."""
    through: dict[tuple[str, str, int | None], int] = {}
    for record in trace.records:
        if record.is_p2p and record.state == "completed":
            through[record.group, record.operation, record.peer] = record.sequence
    return through


def _add_counters(trace: RankTrace, names: dict[str, GroupProgress]) -> None:
    """Add a rank's counters for groups without remaining records."""
    recorded = {record.group for record in trace.records}
    for name, group in names.items():
        if name in recorded:
            continue
        if group.has_p2p:
            # In such a group the counter may count either kind.
            group.entered.setdefault(trace.rank, -1)
            continue
        group.entered[trace.rank] = trace.entered.get(name, -1)
        group.done[trace.rank] = trace.completed.get(name, -1)


def _groups(
    traces: Sequence[RankTrace], mesh: Mesh | None
) -> tuple[dict[str, GroupProgress], dict[int, dict[str, GroupProgress]]]:
    groups: dict[str, GroupProgress] = {}
    known: defaultdict[str, dict[tuple[int, ...], GroupProgress]] = defaultdict(dict)
    # Each rank has the same long tuple of a large group, and a tuple's hash is not cached.
    same: dict[tuple[str, int], GroupProgress] = {}
    for trace in traces:
        for group in trace.groups:
            if not group.ranks or (group.name, id(group.ranks)) in same:
                continue
            of_name = known[group.name]
            found = of_name.get(group.ranks)
            if found is None:
                key = group.name if not of_name else f"{group.name}#{len(of_name)}"
                found = groups[key] = of_name[group.ranks] = GroupProgress(
                    key, group.name, group.description, group.ranks
                )
            same[group.name, id(group.ranks)] = found
    local: dict[int, dict[str, GroupProgress]] = {}
    for trace in traces:
        names: dict[str, GroupProgress] = {}
        for group in trace.groups:
            names[group.name] = (
                same[group.name, id(group.ranks)]
                if group.ranks
                else _nameless(groups, known, group.name, group.description, trace.rank, mesh)
            )
        for record in trace.records:
            if record.group not in names:
                names[record.group] = _nameless(groups, known, record.group, "", trace.rank, mesh)
        for name in (*trace.entered, *trace.completed):
            if name not in names:
                names[name] = _nameless(groups, known, name, "", trace.rank, mesh)
        local[trace.rank] = names
    return groups, local


def _nameless(
    groups: dict[str, GroupProgress],
    known: dict[str, dict[tuple[int, ...], GroupProgress]],
    name: str,
    description: str,
    rank: int,
    mesh: Mesh | None,
) -> GroupProgress:
    """Return the group of that name, whose members this rank does not list."""
    of_name = known.get(name, {})
    for group in of_name.values():
        if len(of_name) == 1 or rank in group.ranks:
            return group
    if name not in groups:
        is_whole = description == "default_pg" or name in ("0", "default_pg", "WORLD", "world")
        ranks = tuple(range(mesh.world_size)) if is_whole and mesh else ()
        groups[name] = GroupProgress(name, name, description, ranks)
    return groups[name]
