"""What the processes of a job were seen to do, judged: who holds it up, and whether they only work. Pure.

The judgement itself is that of `holdfast.hangs`: stacks by groups, collectives by who waits for whom.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from holdfast.event_parts import HangSuspect, StandingPlace
from holdfast.events import CollectiveTrace, StackDump
from holdfast.finding_policies import HangPolicy
from holdfast.hangs.carried import restored
from holdfast.hangs.observed import NodeLinks, ProcessStacks, RankTrace
from holdfast.hangs.seen import Eye
from holdfast.hangs.stack_groups import StackGroup
from holdfast.hangs.verdict import HangVerdict, judge_hang
from holdfast.topology import Mesh

Scope = Literal["machine", "group", "nobody"]
RANKS_TOLD_MAX = 256
PLACES_TOLD_MAX = 24
FRAMES_TOLD_MAX = 16
LINES_TOLD_MAX = 24
_LINE_CHARS_MAX = 400
SILENT_CONFIDENCE = 0.8
STUCK_STATES = frozenset({"T", "t", "D"})
"""Stopped, or waiting inside the kernel where no signal reaches."""


class Answers:
    """What has come from each node, in any order and in parts."""

    def __init__(self) -> None:
        self._dumps: dict[tuple[str, int], StackDump] = {}
        self._traces: dict[tuple[str, int], CollectiveTrace] = {}

    def add(self, event: StackDump | CollectiveTrace) -> None:
        """Take in a part; one that comes again changes nothing."""
        if event.node is None:
            return
        if isinstance(event, StackDump):
            self._dumps[event.node, event.part] = event
        else:
            self._traces[event.node, event.part] = event

    def missing(self, nodes: Iterable[str]) -> tuple[str, ...]:
        """The nodes of which something has not come yet."""
        return tuple(node for node in nodes if not (_is_whole(self._dumps, node) and _is_whole(self._traces, node)))

    @property
    def processes(self) -> tuple[ProcessStacks, ...]:
        """All that were looked at."""
        return tuple(process for dump in self._dumps.values() for process in dump.processes)

    @property
    def traces(self) -> tuple[RankTrace, ...]:
        """What the ranks remember."""
        return tuple(rank for trace in self._traces.values() for rank in restored(trace.origin, trace.ranks))

    @property
    def links(self) -> tuple[NodeLinks, ...]:
        """What the nodes know of their network."""
        return tuple(dump.links for dump in self._dumps.values() if dump.links is not None)


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """What the answers come to; lists are cut to what can be told. `is_excused`: nothing but work was seen.
    `somebody_waits`: a rank stands in a wait for others, by its stack."""

    suspects: tuple[HangSuspect, ...]
    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    verdict: HangVerdict
    places: tuple[StandingPlace, ...]
    working: tuple[int, ...]
    is_excused: bool
    is_machine: bool
    somebody_waits: bool
    unread: tuple[str, ...]
    summary: str
    evidence: tuple[str, ...]
    confidence: float
    scope: Scope
    processes: int


def judge(
    answers: Answers,
    *,
    mesh: str | None,
    nproc_per_node: int,
    node_of_rank: Mapping[int, str],
    outside: frozenset[int],
    unanswered: tuple[str, ...],
    policy: HangPolicy,
) -> Judged:
    """Who holds the job up. `outside`: the ranks that stand outside of collectives, by their ledgers."""
    processes, parsed = answers.processes, Mesh.parse(mesh) if mesh else None
    looked_at = [process for process in processes if not process.is_tracers_fault]
    verdict = judge_hang(looked_at, answers.traces, parsed, nproc_per_node or None, node_of_rank, answers.links)
    eye = Eye()
    suspects = tuple(
        HangSuspect(
            ranks=blamed.ranks[:RANKS_TOLD_MAX],
            nodes=_nodes_of(blamed.ranks, node_of_rank) or blamed.nodes,
            reason=_cut(blamed.reason),
            confidence=blamed.confidence,
            evidence=tuple(map(_cut, blamed.evidence[:LINES_TOLD_MAX])),
        )
        for blamed in verdict.suspects
    )
    ranks, nodes = verdict.ranks, _nodes_of(verdict.ranks, node_of_rank) or verdict.nodes
    scope: Scope = verdict.scope
    confidence, summary = verdict.confidence, verdict.summary
    if not ranks and (silent := _silent(processes, node_of_rank, unanswered)):
        ranks, nodes = silent, _nodes_of(silent, node_of_rank)
        scope, confidence = "machine" if len(nodes) == 1 else "group", SILENT_CONFIDENCE
        summary = f"{', '.join(nodes)} gave no stacks of what its ranks do, the others did"
        suspects = (HangSuspect(ranks=ranks[:RANKS_TOLD_MAX], nodes=nodes, reason=summary, confidence=confidence),)
    working = _working(processes, policy)
    speaks_against = {
        process.rank
        for process in processes
        if process.kind == "rank"
        and (process.state in STUCK_STATES or (process.unread and not process.is_tracers_fault))
    }
    own = [process for process in processes if process.rank in ranks]
    return Judged(
        suspects=suspects,
        ranks=ranks,
        nodes=nodes,
        verdict=verdict,
        places=_places(verdict.stacks.groups if verdict.stacks else ()),
        working=tuple(sorted(working)),
        # Who waits in a collective may burn CPU there: only what is done outside of them is work.
        is_excused=bool(working & outside) and (not ranks or working & outside >= set(ranks)),
        is_machine=bool(ranks)
        and all(rank in speaks_against or node_of_rank.get(rank) in unanswered for rank in ranks),
        somebody_waits=any(
            process.kind == "rank" and eye.look(process).activity.doing == "others" for process in processes
        ),
        unread=tuple(
            _cut(f"rank {process.rank}, pid {process.pid}: {process.unread}") for process in processes if process.unread
        )[:LINES_TOLD_MAX],
        summary=_cut(_with_states(summary, own)),
        evidence=tuple(map(_cut, verdict.evidence[:LINES_TOLD_MAX])),
        confidence=confidence,
        scope=scope,
        processes=len(processes),
    )


def _silent(
    processes: Iterable[ProcessStacks], node_of_rank: Mapping[int, str], unanswered: tuple[str, ...]
) -> tuple[int, ...]:
    """Ranks that gave no stacks though the tracer had time and right to read them; none if they are not the few."""
    unread = {
        process.rank
        for process in processes
        if process.kind == "rank" and process.unread and not process.is_tracers_fault
    }
    silent = tuple(rank for rank, node in sorted(node_of_rank.items()) if rank in unread or node in unanswered)
    return silent if 2 * len(silent) <= len(node_of_rank) else ()


def _working(processes: Iterable[ProcessStacks], policy: HangPolicy) -> set[int]:
    """The ranks of whose processes one computes, reads or writes."""
    return {
        process.rank
        for process in processes
        if process.rank is not None
        and (
            (process.cpu_share or 0.0) >= policy.working_cpu_share
            or (process.io_bytes_per_s or 0.0) >= policy.working_bytes_per_s
        )
    }


def _with_states(summary: str, processes: Iterable[ProcessStacks]) -> str:
    """The summary, with what the kernel says of the suspects' processes."""
    words = {"T": "is stopped", "t": "is stopped by a debugger", "D": "waits inside the kernel"}
    said = [
        f"process {process.pid} of rank {process.rank} {words[process.state]}"
        + (f" ({process.waits_in})" if process.state == "D" and process.waits_in else "")
        for process in processes
        if process.state in words
    ]
    return "; ".join([summary, *said[:4]]) if said else summary


def _places(groups: Iterable[StackGroup]) -> tuple[StandingPlace, ...]:
    most_crowded = sorted(groups, key=lambda group: -group.count)[:PLACES_TOLD_MAX]
    return tuple(
        StandingPlace(
            kind=group.kind,
            count=group.count,
            stack=tuple(map(_cut, group.stack[:FRAMES_TOLD_MAX])),
            waits_for=group.waits_for,
            ranks=group.ranks[:RANKS_TOLD_MAX],
            is_usual=group.is_healthy,
        )
        for group in most_crowded
    )


def _nodes_of(ranks: Iterable[int], node_of_rank: Mapping[int, str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(node_of_rank[rank] for rank in ranks if rank in node_of_rank))


def _is_whole(parts: Mapping[tuple[str, int], StackDump | CollectiveTrace], node: str) -> bool:
    first = parts.get((node, 1))
    return first is not None and all((node, part) in parts for part in range(1, first.parts + 1))


def _cut(line: str) -> str:
    return line[:_LINE_CHARS_MAX]
