"""How far each rank came in each process group, from what each remembers. Pure.

A group is known by its name; where two groups have one name their members tell them apart. Members that nobody names
are those who mention the group.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from typing import Final

import msgspec

from holdfast.events.parts.traces import CollectiveRecord, RankTrace
from holdfast.topology import Mesh

_ONE_SIDED: Final = frozenset({"broadcast", "_broadcast_oop", "reduce", "_reduce_oop", "gather", "scatter"})
"""Their root, or all but their root, may be through before others have come."""

_PAIRWISE: Final = frozenset({"all_to_all", "alltoall", "all_to_all_single", "all_to_all_v_single"})
"""Who shares nothing with a member may be through before it has come: experts to which no token goes."""

UNKNOWN: Final = "collective"
"""An operation that counters tell of, and no record."""

_LOST_MAX: Final = 64


def is_recorded(record: CollectiveRecord) -> bool:
    """Whether more is known of it than a counter tells."""
    return record.operation != UNKNOWN


def is_pairwise(operation: str) -> bool:
    """Whether members may be through with `operation` before those have come with which they share nothing."""
    return operation in _PAIRWISE


def ends_together(operation: str) -> bool:
    """Whether nobody can be through with `operation` before all have joined."""
    return operation not in _ONE_SIDED and operation != UNKNOWN


class GroupProgress(msgspec.Struct):
    """A process group. For each rank that says so: the last collective `entered`, and the last one `done`.

    `messages`: the last point-to-point operation that a rank's records have.

    `is_inferred`: no rank tells the members, those are meant that mention the group. `kind` is the same for groups
    that do the same work in other places: they have one purpose, and members as far apart.
    """

    key: str
    name: str
    description: str = ""
    ranks: tuple[int, ...] = ()
    has_p2p: bool = False
    is_inferred: bool = False
    kind: int = 0
    entered: dict[int, int] = {}
    done: dict[int, int] = {}
    messages: dict[int, int] = {}

    def done_by_any(self) -> int:
        return max(self.done.values(), default=-1)

    def entered_by_all(self) -> int:
        """The last collective that all have begun of whom it is known."""
        return min(self.entered.values(), default=-1)


class PendingOperation(msgspec.Struct, frozen=True):
    """An operation that a rank has begun and that has not ended there."""

    group: GroupProgress
    record: CollectiveRecord


class Progress(msgspec.Struct):
    """All groups, and what is pending on each rank in the order in which it began it.

    `local`: for each rank its names of groups. `clipped`: ranks that have begun more than their records reach back to.
    """

    groups: dict[str, GroupProgress]
    pending: dict[int, list[PendingOperation]]
    local: dict[int, dict[str, GroupProgress]]
    clipped: set[int]

    @property
    def traced(self) -> Collection[int]:
        return self.local.keys()

    def silent(self) -> list[int]:
        """Ranks that are members of a group and of which nothing is known."""
        return sorted({rank for group in self.groups.values() for rank in group.ranks} - self.local.keys())


def progress_of(traces: Sequence[RankTrace], mesh: Mesh | None) -> Progress:
    """Put together what the ranks remember. O(records)."""
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
                # Operations of a group end in their order, so what comes before the first that has not ended has.
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
    """Collectives that are pending by the counters, and older than any record of their group that is left."""
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
    """The last point-to-point operation of each channel that has ended: those before it have as well."""
    through: dict[tuple[str, str, int | None], int] = {}
    for record in trace.records:
        if record.is_p2p and record.state == "completed":
            through[record.group, record.operation, record.peer] = record.sequence
    return through


def _add_counters(trace: RankTrace, names: dict[str, GroupProgress]) -> None:
    """What a rank's counters say of groups that its records do not reach back to."""
    recorded = {record.group for record in trace.records}
    for name, group in names.items():
        if name in recorded:
            continue
        if group.has_p2p:
            # The counter of such a group may be that of either kind.
            group.entered.setdefault(trace.rank, -1)
            continue
        group.entered[trace.rank] = trace.entered.get(name, -1)
        group.done[trace.rank] = trace.completed.get(name, -1)


def _groups(
    traces: Sequence[RankTrace], mesh: Mesh | None
) -> tuple[dict[str, GroupProgress], dict[int, dict[str, GroupProgress]]]:
    """All groups, and for each rank its names of them."""
    groups: dict[str, GroupProgress] = {}
    known: defaultdict[str, dict[tuple[int, ...], GroupProgress]] = defaultdict(dict)
    # Each rank brings the same long tuple of a large group, and a tuple's hash is not kept.
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
    """The group of that name whose members this rank does not tell."""
    of_name = known.get(name, {})
    for group in of_name.values():
        if len(of_name) == 1 or rank in group.ranks:
            return group
    if name not in groups:
        is_whole = description == "default_pg" or name in ("0", "default_pg", "WORLD", "world")
        ranks = tuple(range(mesh.world_size)) if is_whole and mesh else ()
        groups[name] = GroupProgress(name, name, description, ranks)
    return groups[name]
