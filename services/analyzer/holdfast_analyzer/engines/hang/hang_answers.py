"""The answers of a job's nodes to a trace, and the judgement: which ranks hold the job up, or only work. Pure.

`holdfast.engines.hang` judges: it groups the stacks, and builds a graph of the ranks that wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Generic, Literal, NamedTuple, TypeVar

import msgspec

from holdfast.engines.hang.convincing import convincing_group
from holdfast.engines.hang.event_times import from_event_times
from holdfast.engines.hang.hang_verdict import HangVerdict, judge_hang
from holdfast.engines.hang.idle_devices import idle_devices
from holdfast.engines.hang.kernel_waits import named_by_kernel
from holdfast.engines.hang.stacks.process_state import StateReader
from holdfast.engines.hang.stacks.stack_groups import StackGroup
from holdfast.events import CollectiveTrace, StackDump
from holdfast.events.parts.devices import IdleDevice, NodeActivity
from holdfast.events.parts.ranks import CodePlace, HangSuspect
from holdfast.events.parts.traces import NodeLinks, ProcessStacks, RankTrace
from holdfast.settings.findings.hang import HangPolicy
from holdfast.topology import Mesh
from holdfast_analyzer.engines.hang.stopped_trees import (
    STOPPED_BY_SIGNAL,
    STOPPED_CONFIDENCE,
    in_words,
    is_working,
    reads_or_writes,
    stopped_trees,
)

Scope = Literal["machine", "group", "nobody"]
RANKS_SHOWN_MAX = 256
PLACES_SHOWN_MAX = 24
SUSPECTS_SHOWN_MAX = 16
FRAMES_SHOWN_MAX = 16
LINES_SHOWN_MAX = 24
_LINE_CHARS_MAX = 400
SILENT_CONFIDENCE = 0.8
STUCK_STATES = STOPPED_BY_SIGNAL | {"D"}
"""Stopped, or waiting inside the kernel where no signal arrives."""


Part = TypeVar("Part", StackDump, CollectiveTrace)


class _Parts(Generic[Part]):
    """One kind of answer of some nodes. `owed`: the nodes whose answer is not complete."""

    def __init__(self, nodes: Iterable[str]) -> None:
        self._of: dict[str, dict[int, Part]] = {node: {} for node in nodes}
        self.owed = set(self._of)

    def add(self, event: Part) -> None:
        if event.node not in self.owed:
            return
        parts = self._of[event.node]
        of_first = next(iter(parts.values()), event).parts
        if event.parts == of_first and 1 <= event.part <= of_first:
            parts[event.part] = event
        if len(parts) >= of_first:
            self.owed.discard(event.node)

    def __iter__(self) -> Iterator[tuple[str, Part]]:
        return ((node, part) for node, parts in self._of.items() for part in parts.values())


class TraceAnswers:
    """The answers of the nodes, in parts and in any order. A node answers for its own ranks only."""

    def __init__(self, node_of_rank: Mapping[int, str]) -> None:
        self._node_of_rank = node_of_rank
        self._dumps = _Parts[StackDump](node_of_rank.values())
        self._traces = _Parts[CollectiveTrace](node_of_rank.values())

    def add(self, event: StackDump | CollectiveTrace) -> None:
        """Take in a part. A repeated part changes nothing, nor does one of a node without ranks of the job."""
        if isinstance(event, StackDump):
            self._dumps.add(event)
        else:
            self._traces.add(event)

    @property
    def are_complete(self) -> bool:
        return not (self._dumps.owed or self._traces.owed)

    @property
    def missing(self) -> tuple[str, ...]:
        return tuple(sorted(self._dumps.owed | self._traces.owed))

    @property
    def processes(self) -> tuple[ProcessStacks, ...]:
        return tuple(
            process if process.node == node else msgspec.structs.replace(process, node=node)
            for node, dump in self._dumps
            for process in dump.processes
            if process.rank is not None and self._node_of_rank.get(process.rank) == node
        )

    @property
    def traces(self) -> tuple[RankTrace, ...]:
        return tuple(
            rank
            for node, trace in self._traces
            for rank in from_event_times(
                trace.origin, (rank for rank in trace.ranks if self._node_of_rank.get(rank.rank) == node)
            )
        )

    @property
    def links(self) -> tuple[NodeLinks, ...]:
        reported = ((node, dump.links) for node, dump in self._dumps if dump.links is not None)
        return tuple(msgspec.structs.replace(links, node=node) for node, links in reported)

    @property
    def activity(self) -> dict[str, NodeActivity]:
        return {node: dump.activity for node, dump in self._dumps if dump.activity is not None}


class HangJudgement(msgspec.Struct, frozen=True, kw_only=True):
    """The conclusion from the answers. Lists are cut to the limits of an event."""

    suspects: tuple[HangSuspect, ...]
    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    verdict: HangVerdict
    places: tuple[CodePlace, ...]
    working: tuple[int, ...]
    is_excused: bool
    """The ranks under suspicion only work."""
    is_machine: bool
    """Each of the ranks shows a fault of its machine."""
    in_own_code: frozenset[int]
    """Ranks whose process is alive and waits for no other rank and no device."""
    is_by_signal: bool
    """A signal stopped their processes, and nothing else is wrong with them."""
    symptom: str
    """Symptom that the ranks' waits inside the kernel show; "": they show none."""
    idle: tuple[IdleDevice, ...]
    """Devices without an activity that most others have, and no stack explains it."""
    group: tuple[str, ...]
    """Machines of a group that may be evicted as a whole, the most suspect first."""
    some_wait: bool
    """A rank waits for others, by its stack."""
    unread: tuple[str, ...]
    summary: str
    evidence: tuple[str, ...]
    confidence: float
    scope: Scope
    processes: int


class _Named(NamedTuple):
    """The ranks that hold the job up, by one kind of evidence."""

    suspects: tuple[HangSuspect, ...]
    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    scope: Scope
    confidence: float
    summary: str


def judge(
    answers: TraceAnswers,
    *,
    mesh: Mesh | None,
    nproc_per_node: int,
    node_of_rank: Mapping[int, str],
    outside: frozenset[int],
    unanswered: tuple[str, ...],
    policy: HangPolicy,
    moves_data: bool = False,
) -> HangJudgement:
    """Judge which ranks hold the job up.

    `outside`: ranks outside of collectives, by their ledgers. `moves_data`: the job is in a phase such as a checkpoint,
    where a rank may read or write while one of its threads waits.
    """
    processes = answers.processes
    looked_at = [process for process in processes if not process.is_tracers_fault]
    verdict = judge_hang(looked_at, answers.traces, mesh, nproc_per_node or None, node_of_rank, answers.links)
    reader = StateReader()
    stopped = {
        rank: process
        for rank, process in stopped_trees(processes, policy, is_alone=len(node_of_rank) == 1).items()
        if rank in node_of_rank
    }
    named = _by_verdict(verdict, node_of_rank)
    is_by_process = bool(stopped) and named.confidence < STOPPED_CONFIDENCE
    if is_by_process:
        named = _by_stopped_processes(stopped, node_of_rank)
    if not named.ranks and (silent := _silent(processes, node_of_rank, unanswered)):
        named = _by_silence(silent, node_of_rank)
    ranks = named.ranks
    working = _working(processes, policy)
    shows_fault = {
        process.rank
        for process in processes
        if process.kind == "rank"
        and (process.state in STUCK_STATES or (process.unread and not process.is_tracers_fault))
    } | stopped.keys()
    by_signal = {
        process.rank
        for process in processes
        if process.kind == "rank" and process.rank is not None and process.state in STOPPED_BY_SIGNAL
    } | stopped.keys()
    moving = _working(processes, policy, works=reads_or_writes) if moves_data else set()
    busy = (working - stopped.keys()) & outside | moving
    # In a phase such as a checkpoint one rank may write while the devices of all others wait for it.
    idle = () if moves_data else idle_devices(answers.activity, by_signal | _on_host(processes, reader), node_of_rank)
    shown = {process.pid for process in stopped.values()} if is_by_process else ()
    own = [process for process in processes if process.rank in ranks and process.pid not in shown]
    return HangJudgement(
        suspects=named.suspects,
        ranks=ranks,
        nodes=named.nodes,
        verdict=verdict,
        places=_places(verdict.stacks.groups if verdict.stacks else ()),
        working=tuple(sorted(working)),
        # A rank that waits in a collective may burn CPU there: only CPU time outside of collectives is work.
        is_excused=bool(busy) and (not ranks or busy >= set(ranks)),
        is_machine=bool(ranks) and all(rank in shows_fault or node_of_rank.get(rank) in unanswered for rank in ranks),
        is_by_signal=bool(ranks)
        and all(rank in by_signal and node_of_rank.get(rank) not in unanswered for rank in ranks),
        in_own_code=_in_own_code(processes, reader) - shows_fault,
        symptom=named_by_kernel([process for process in processes if process.rank in ranks]) or "",
        idle=idle,
        group=convincing_group(verdict, looked_at, node_of_rank) if not (busy or shows_fault or unanswered) else (),
        some_wait=any(
            process.kind == "rank" and reader.read(process).activity.doing == "others" for process in processes
        ),
        unread=tuple(
            _cut(f"rank {process.rank}, pid {process.pid}: {process.unread}") for process in processes if process.unread
        )[:LINES_SHOWN_MAX],
        summary=_cut(_with_states(named.summary, own)),
        evidence=tuple(map(_cut, (*(device.text for device in idle), *verdict.evidence)[:LINES_SHOWN_MAX])),
        confidence=named.confidence,
        scope=named.scope,
        processes=len(processes),
    )


def _on_host(processes: Iterable[ProcessStacks], reader: StateReader) -> set[int]:
    """Return the ranks that are busy with their own work on the host, such as their data."""
    return {
        process.rank
        for process in processes
        if process.kind == "rank" and process.rank is not None and reader.read(process).activity.doing == "own"
    }


def _in_own_code(processes: Iterable[ProcessStacks], reader: StateReader) -> frozenset[int]:
    return frozenset(
        process.rank
        for process in processes
        if process.kind == "rank"
        and process.rank is not None
        and process.threads
        and process.state not in STOPPED_BY_SIGNAL
        and reader.read(process).activity.doing != "others"
    )


def _by_verdict(verdict: HangVerdict, node_of_rank: Mapping[int, str]) -> _Named:
    """Name the ranks that stacks, records of collectives and links show."""
    suspects = tuple(
        HangSuspect(
            ranks=ranks[:RANKS_SHOWN_MAX],
            nodes=_nodes_of(ranks, node_of_rank)[:RANKS_SHOWN_MAX],
            reason=_cut(blamed.reason),
            confidence=blamed.confidence,
            evidence=tuple(map(_cut, blamed.evidence[:LINES_SHOWN_MAX])),
        )
        for blamed in verdict.suspects[:SUSPECTS_SHOWN_MAX]
        if (ranks := _of_job(blamed.ranks, node_of_rank))
    )
    ranks = _of_job(verdict.ranks, node_of_rank)
    scope, confidence = (verdict.scope, verdict.confidence) if ranks else ("nobody", 0.0)
    return _Named(suspects, ranks, _nodes_of(ranks, node_of_rank), scope, confidence, verdict.summary)


def _by_stopped_processes(stopped: Mapping[int, ProcessStacks], node_of_rank: Mapping[int, str]) -> _Named:
    """Name the ranks that a stopped process holds up."""
    ranks = tuple(sorted(stopped))
    nodes = _nodes_of(ranks, node_of_rank)
    suspects = tuple(
        HangSuspect(
            ranks=(rank,),
            nodes=_nodes_of((rank,), node_of_rank),
            reason=in_words(stopped[rank]),
            confidence=STOPPED_CONFIDENCE,
        )
        for rank in ranks[:SUSPECTS_SHOWN_MAX]
    )
    more = f"; {len(ranks) - 1} more ranks are held up so" if len(ranks) > 1 else ""
    summary = f"{suspects[0].reason} ({nodes[0]}) and no other process of that rank works{more}"
    return _Named(suspects, ranks, nodes, _scope(nodes), STOPPED_CONFIDENCE, summary)


def _by_silence(ranks: tuple[int, ...], node_of_rank: Mapping[int, str]) -> _Named:
    """Name the ranks of which there are no stacks, while there are of the others."""
    nodes = _nodes_of(ranks, node_of_rank)
    summary = _cut(f"{', '.join(nodes)} gave no stacks of what its ranks do, the others did")
    shown, shown_nodes = ranks[:RANKS_SHOWN_MAX], nodes[:RANKS_SHOWN_MAX]
    suspect = HangSuspect(ranks=shown, nodes=shown_nodes, reason=summary, confidence=SILENT_CONFIDENCE)
    return _Named((suspect,), ranks, nodes, _scope(nodes), SILENT_CONFIDENCE, summary)


def _scope(nodes: tuple[str, ...]) -> Scope:
    return "machine" if len(nodes) == 1 else "group"


def _of_job(ranks: Iterable[int], node_of_rank: Mapping[int, str]) -> tuple[int, ...]:
    """Drop ranks that the job does not have: a rank's records may name any number."""
    return tuple(rank for rank in ranks if rank in node_of_rank)


def _silent(
    processes: Iterable[ProcessStacks], node_of_rank: Mapping[int, str], unanswered: tuple[str, ...]
) -> tuple[int, ...]:
    """Return the ranks without stacks that the tracer had time and rights to read; none if they are the majority."""
    unread = {
        process.rank
        for process in processes
        if process.kind == "rank" and process.unread and not process.is_tracers_fault
    }
    silent = tuple(rank for rank, node in sorted(node_of_rank.items()) if rank in unread or node in unanswered)
    return silent if 2 * len(silent) <= len(node_of_rank) else ()


def _working(
    processes: Iterable[ProcessStacks],
    policy: HangPolicy,
    works: Callable[[ProcessStacks, HangPolicy], bool] = is_working,
) -> set[int]:
    """Return the ranks with a process that works."""
    return {process.rank for process in processes if process.rank is not None and works(process, policy)}


def _with_states(summary: str, processes: Iterable[ProcessStacks]) -> str:
    words = {"T": "is stopped", "t": "is stopped by a debugger", "D": "waits inside the kernel"}
    states = [
        in_words(process)
        if process.kind != "rank" and process.state == "T"
        else f"process {process.pid} of rank {process.rank} {words[process.state]}"
        + (f" ({process.waits_in})" if process.state == "D" and process.waits_in else "")
        for process in processes
        if process.state in words
    ]
    return "; ".join([summary, *states[:4]]) if states else summary


def _places(groups: Iterable[StackGroup]) -> tuple[CodePlace, ...]:
    most_crowded = sorted(groups, key=lambda group: -group.count)[:PLACES_SHOWN_MAX]
    return tuple(
        CodePlace(
            kind=group.kind,
            count=group.count,
            stack=tuple(map(_cut, group.stack[:FRAMES_SHOWN_MAX])),
            waits_for=group.waits_for,
            ranks=group.ranks[:RANKS_SHOWN_MAX],
            is_usual=group.is_healthy,
        )
        for group in most_crowded
    )


def _nodes_of(ranks: Iterable[int], node_of_rank: Mapping[int, str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(node_of_rank[rank] for rank in ranks if rank in node_of_rank))


def _cut(line: str) -> str:
    return line[:_LINE_CHARS_MAX]
