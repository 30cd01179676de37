"""Outliers among the stacks of a job, grouped by string match (ByteRobust §5.1). Pure.

Processes are compared within their kind, ranks with those that do the same work in other replicas. Stacks are compared
by functions first; if that leaves no outlier, by callers' lines, then by native symbols.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

import msgspec

from holdfast.engines.hang.group_cover import SharedGroup
from holdfast.engines.hang.stacks.frames import Call
from holdfast.engines.hang.stacks.outliers import split_by_peers
from holdfast.engines.hang.stacks.process_state import ProcessState, StateReader
from holdfast.engines.hang.stacks.stack_blame import ComparedProcesses, ObservedProcess, blame
from holdfast.engines.wording import in_ranges
from holdfast.events.parts.traces import Blamed, ProcessKind, ProcessStacks
from holdfast.topology import Mesh

_BY: tuple[tuple[str, Callable[[ProcessState], int]], ...] = (
    ("function", lambda state: state.place),
    ("line", lambda state: state.lines),
    ("native symbol", lambda state: state.symbols),
)


class StackGroup(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Processes of one kind with one stack. `stack`: that of one of them, innermost first; `ranks`: theirs."""

    kind: ProcessKind
    stack: tuple[str, ...]
    waits_for: str = ""
    count: int
    ranks: tuple[int, ...] = ()
    is_healthy: bool


class StackVerdict(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Verdict from the stacks of a job. If no rank is blamed, the stacks prove nothing."""

    groups: tuple[StackGroup, ...]
    outliers: tuple[int, ...] = ()
    """Ranks."""
    shared: tuple[SharedGroup, ...] = ()
    """The smallest set of parallel groups that covers the suspects."""
    blamed: tuple[Blamed, ...] = ()
    notes: tuple[str, ...] = ()
    """Reasons why no rank is blamed."""


def judge_stacks(processes: Sequence[ProcessStacks], mesh: Mesh | None, ranks_per_node: int | None) -> StackVerdict:
    """Group processes by stack, find outliers, and blame what they have in common. O(processes). `ranks_per_node`
    groups ranks into machines where processes name none; without both, each rank is its own machine."""
    reader = StateReader()
    members: defaultdict[ProcessKind, list[ObservedProcess]] = defaultdict(list)
    for process in _latest(processes):
        members[process.kind].append(ObservedProcess(process, reader.read(process), process.rank))
    judged = [_judged(kind, members[kind], mesh) for kind in ("rank", "data_loader", "checkpoint") if members[kind]]
    ranks = next((one for one in judged if one.kind == "rank"), ComparedProcesses(kind="rank"))
    children = [one for one in judged if one.kind != "rank"]
    verdict = blame(ranks, children, mesh, node_names(processes, ranks_per_node))
    groups = [group for one in judged for group in _groups(one)]
    if members["other"]:
        groups += _groups(ComparedProcesses(kind="other", members=tuple(members["other"])))
    return StackVerdict(
        groups=tuple(groups),
        outliers=tuple(sorted({rank for index in ranks.outliers if (rank := ranks.members[index].rank) is not None})),
        shared=verdict.shared,
        blamed=verdict.blamed,
        notes=(*_notes(processes, members, mesh), *verdict.notes),
    )


def node_names(processes: Sequence[ProcessStacks], ranks_per_node: int | None) -> Callable[[int], str]:
    """Return a function from rank to machine: the name or number of the machine; "" if unknown."""
    named = {process.rank: process.node for process in processes if process.rank is not None and process.node}

    def name(rank: int) -> str:
        return named.get(rank) or (str(rank // ranks_per_node) if ranks_per_node else "")

    return name


def _latest(processes: Sequence[ProcessStacks]) -> list[ProcessStacks]:
    """Return one process per rank, the last readable one. Children have no rank number of their own."""
    ranks: dict[int, ProcessStacks] = {}
    others: list[ProcessStacks] = []
    for process in processes:
        if process.kind != "rank" or process.rank is None:
            others.append(process)
        elif process.threads or process.rank not in ranks:
            ranks[process.rank] = process
    return [ranks[rank] for rank in sorted(ranks)] + others


def _judged(kind: ProcessKind, members: list[ObservedProcess], mesh: Mesh | None) -> ComparedProcesses:
    readable = [index for index, member in enumerate(members) if member.process.threads]
    numbers = [members[index].rank for index in readable]
    judged = ComparedProcesses(kind=kind, members=tuple(members))
    for by, key in _BY:
        standing = split_by_peers([key(members[index].state) for index in readable], numbers, mesh)
        if by != "function" and len(standing.like_most) * 2 <= len(readable):
            break
        found = ComparedProcesses(
            kind=kind,
            members=tuple(members),
            by=by,
            like_most=frozenset(readable[place] for place in standing.like_most),
            outliers=frozenset(readable[place] for place in standing.alone),
        )
        if by == "function" or found.outliers:
            judged = found
        if found.outliers or kind != "rank" or found.has_busy_outlier:
            break
    return judged


def _groups(judged: ComparedProcesses) -> list[StackGroup]:
    by_place: defaultdict[tuple[int, bool], list[ObservedProcess]] = defaultdict(list)
    key = dict(_BY)[judged.by]
    for index, member in enumerate(judged.members):
        if member.process.threads:
            by_place[key(member.state), index in judged.outliers].append(member)
    return [
        StackGroup(
            kind=judged.kind,
            stack=tuple(map(_shown, members[0].state.stack.calls)),
            waits_for=members[0].state.activity.what,
            count=len(members),
            ranks=tuple(sorted({member.rank for member in members if member.rank is not None})),
            is_healthy=not is_outlier,
        )
        for (_, is_outlier), members in sorted(by_place.items(), key=lambda item: (item[0][1], -len(item[1])))
    ]


def _shown(call: Call) -> str:
    return f"{call.function} ({call.path or call.file}:{call.line})" if call.line else str(call)


def _notes(
    processes: Sequence[ProcessStacks], members: dict[ProcessKind, list[ObservedProcess]], mesh: Mesh | None
) -> list[str]:
    notes: list[str] = []
    unread = [process for process in processes if not process.threads]
    by_reason: defaultdict[str, list[int]] = defaultdict(list)
    for process in unread:
        by_reason[process.unread or "no stack in it"].append(-1 if process.rank is None else process.rank)
    for reason, ranks in list(by_reason.items())[:8]:
        known = sorted(rank for rank in ranks if rank >= 0)
        whose = f"ranks {in_ranges(known)}" if known else f"{len(ranks)} processes"
        notes.append(f"{whose} not read: {reason}")
    unnumbered = sum(member.rank is None for member in members["rank"])
    if unnumbered:
        notes.append(f"{unnumbered} processes that look like ranks do not state their rank")
    outside = [m.rank for m in members["rank"] if mesh and m.rank is not None and m.rank >= mesh.world_size]
    if mesh and outside:
        notes.append(
            f"mesh {mesh} has {mesh.world_size} ranks, yet there are stacks of rank {outside[-1]}: not compared"
        )
    return notes
