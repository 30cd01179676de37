"""Verdict on a hang from stacks, collectives and network: the machines that block the job. Pure.

Collectives show that others wait for a rank, its stack shows what it does instead: a rank that both name is the one.
Stacks of waiting ranks and of the rank that they wait for can be alike; progress in collectives tells them apart.
Collectives leave several ranks where all have joined, or where point-to-point operations are not recorded; stacks then
exclude the ranks that wait themselves. If a link is cut, all members of a collective look the same; the network state
of their nodes then names the two ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from holdfast.engines.hang.graph.wait_for import BlamedInCollective, WaitVerdict, judge_collectives
from holdfast.engines.hang.silent_links import narrowed_by_ports, silent_links
from holdfast.engines.hang.stacks.activities import ON_DEVICE
from holdfast.engines.hang.stacks.process_state import StateReader
from holdfast.engines.hang.stacks.stack_groups import StackVerdict, judge_stacks
from holdfast.engines.wording import in_ranges, machines_in_words, ranks_in_words
from holdfast.events.parts.traces import Blamed, NodeLinks, ProcessStacks, RankTrace
from holdfast.topology import Mesh

_STRONG = 0.8
"""Confidence from which stacks prove that a rank is stopped or busy with something else."""

STOPPED = frozenset({"T", "t", "stopped", "Z", "X", "dead", "zombie"})

_SUSPECT_MOST = 4
"""Ratio of suspects from collectives to suspects from stacks above which the stacks decide."""

_EVIDENCE_MOST = 12


class HangVerdict(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The ranks and machines that block the job."""

    suspects: tuple[Blamed, ...] = ()
    """Most probable first; an entry with several ranks means one of these, without proof which."""
    ranks: tuple[int, ...] = ()
    """Ranks of all suspects."""
    nodes: tuple[str, ...] = ()
    """Nodes of all suspects."""
    scope: Literal["machine", "group", "nobody"] = "nobody"
    """Single machines, only a group, or none."""
    confidence: float = 0.0
    victims: tuple[int, ...] = ()
    """Ranks that wait for the suspects."""
    summary: str = ""
    """One sentence."""
    evidence: tuple[str, ...] = ()
    """Lines that can be checked by hand."""
    notes: tuple[str, ...] = ()
    collectives: WaitVerdict | None = None
    stacks: StackVerdict | None = None


def judge_hang(
    stacks: Sequence[ProcessStacks],
    traces: Sequence[RankTrace],
    mesh: Mesh | None = None,
    ranks_per_node: int | None = None,
    node_of_rank: Mapping[int, str] | None = None,
    links: Sequence[NodeLinks] = (),
) -> HangVerdict:
    """Judge a hang. Either kind of evidence may be missing, in whole or for some ranks. O(processes + records)."""
    nodes = _Nodes(stacks, traces, ranks_per_node, node_of_rank)
    by_stack = judge_stacks(stacks, mesh, ranks_per_node) if stacks else None
    by_wait = judge_collectives(traces, mesh, ranks_per_node, _waiting(stacks, traces)) if traces else None
    suspects, notes = _combined(by_wait, by_stack, stacks)
    suspects = _with_network(suspects, by_wait, by_stack, traces, links, nodes, notes)
    suspects = [msgspec.structs.replace(each, nodes=nodes.of(each.ranks) or each.nodes) for each in suspects]
    suspects.sort(key=lambda each: (-each.confidence, each.ranks))
    return _verdict(suspects, notes, by_wait, by_stack)


def _with_network(
    suspects: list[Blamed],
    by_wait: WaitVerdict | None,
    by_stack: StackVerdict | None,
    traces: Sequence[RankTrace],
    links: Sequence[NodeLinks],
    nodes: _Nodes,
    notes: list[str],
) -> list[Blamed]:
    """Prefer the network's evidence: in traces, a cut link shows as ranks that are late or never come. It does not
    override a stack that shows what a rank does instead of waiting."""
    silent, more = silent_links(links)
    notes += more
    if by_stack and any(each.confidence >= _STRONG for each in by_stack.blamed):
        notes += [link.reason for link in silent]
        return suspects
    if silent:
        return [
            Blamed(
                ranks=nodes.on(link.nodes),
                nodes=link.nodes,
                reason=link.reason,
                confidence=link.confidence,
                evidence=link.evidence,
            )
            for link in silent
        ]
    waited = by_wait.blamed if by_wait else ()
    if not waited or any(each.kind != "joined_not_moving" for each in waited):
        return suspects
    found = [narrowed_by_ports(each, _members(each, traces), links, nodes.of) for each in waited]
    return [each for each in found if each is not None] or suspects


def _members(blamed: BlamedInCollective, traces: Sequence[RankTrace]) -> tuple[int, ...]:
    """Return all ranks of the group whose collective does not end."""
    groups = (group for trace in traces for group in trace.groups if group.name == blamed.group)
    return next((group.ranks for group in groups if set(blamed.ranks) <= set(group.ranks)), blamed.ranks)


class _Nodes:
    """Machines of ranks, from traces, stacks and the caller."""

    def __init__(
        self,
        stacks: Sequence[ProcessStacks],
        traces: Sequence[RankTrace],
        ranks_per_node: int | None,
        given: Mapping[int, str] | None,
    ) -> None:
        self._names = {trace.rank: trace.node for trace in traces if trace.node}
        self._names |= {process.rank: process.node for process in stacks if process.rank is not None and process.node}
        self._names |= dict(given or {})
        ranks = {trace.rank for trace in traces} | {each.rank for each in stacks if each.rank is not None}
        self._ranks = sorted(ranks | self._names.keys())
        self._ranks_per_node = ranks_per_node

    def of(self, ranks: Sequence[int]) -> tuple[str, ...]:
        """Return each machine once; empty if any is unknown."""
        found: dict[str, None] = {}
        for rank in ranks:
            name = self._names.get(rank) or (str(rank // self._ranks_per_node) if self._ranks_per_node else "")
            if not name:
                return ()
            found[name] = None
        return tuple(found)

    def on(self, nodes: Sequence[str]) -> tuple[int, ...]:
        return tuple(rank for rank in self._ranks if set(self.of((rank,))) & set(nodes))


def _waiting(stacks: Sequence[ProcessStacks], traces: Sequence[RankTrace]) -> set[int]:
    """Return ranks without a trace that wait by their stack: for the device, which runs the collective, or at the place
    of ranks whose traces show that they wait."""
    traced = {trace.rank for trace in traces if not trace.unread}
    own = [each for each in stacks if each.kind == "rank" and each.threads and each.state not in STOPPED]
    if all(each.rank in traced for each in own):
        return set()
    reader = StateReader()
    waits = {trace.rank for trace in traces if any(record.state != "completed" for record in trace.records)}
    places = {reader.read(each).lines for each in own if each.rank in waits}
    return {
        each.rank
        for each in own
        if each.rank is not None
        and each.rank not in traced
        and (reader.read(each).lines in places or reader.read(each).activity == ON_DEVICE)
    }


def _combined(
    by_wait: WaitVerdict | None, by_stack: StackVerdict | None, stacks: Sequence[ProcessStacks]
) -> tuple[list[Blamed], list[str]]:
    notes = [*(by_wait.notes if by_wait else ()), *(by_stack.notes if by_stack else ())]
    waited = list(by_wait.blamed) if by_wait else []
    stood = list(by_stack.blamed) if by_stack else []
    if not waited:
        return stood, notes
    victims = set(by_wait.victims) if by_wait else set()
    contradicted = [each for each in stood if set(each.ranks) <= victims and each.confidence < _STRONG]
    notes += [f"the stacks blame {ranks_in_words(each.ranks)}, which wait in a collective" for each in contradicted]
    stood = [each for each in stood if each not in contradicted]
    if not stood:
        return _without_waiting(waited, stacks, notes), notes
    both = [_agreed(each, stood) for each in waited if _meets(each, stood)]
    strong = [each for each in stood if each.confidence >= _STRONG]
    if both:
        # A rank that its stack shows stopped or busy explains why others wait for it; they are late because of it.
        sure = {rank for each in strong for rank in each.ranks}
        rest = [each for each in waited if not _meets(each, stood)]
        kept = rest if not sure else [each for each in rest if _is_evident(each)]
        return [*both, *_without_waiting(kept, stacks, notes, keep_all=False)], notes
    if strong and not any(_is_evident(each) for each in waited):
        return strong, notes
    if all(len(each.ranks) > _SUSPECT_MOST * max(len(one.ranks) for one in stood) for each in waited):
        return stood, notes
    return _without_waiting(waited, stacks, notes), notes


def _is_evident(blamed: Blamed) -> bool:
    return len(blamed.ranks) == 1 and blamed.confidence >= _STRONG


def _meets(each: BlamedInCollective, stood: Sequence[Blamed]) -> bool:
    return any(set(each.ranks) & set(one.ranks) for one in stood)


def _agreed(each: BlamedInCollective, stood: Sequence[Blamed]) -> Blamed:
    """Merge a suspect of both: the ranks that both name if the stacks are certain, with the evidence of both."""
    best = max(
        (one for one in stood if set(one.ranks) & set(each.ranks)), key=lambda one: (one.confidence, -len(one.ranks))
    )
    doubt = (1 - each.confidence) * (1 - best.confidence)
    # Ranks that wait for the same collective may differ from most without a fault of their own.
    tells_apart = best.confidence >= _STRONG
    return Blamed(
        ranks=tuple(rank for rank in each.ranks if rank in best.ranks or not tells_apart),
        nodes=each.nodes,
        reason=f"{each.reason}; {best.reason}",
        confidence=round(min(0.99, 1 - doubt), 2),
        evidence=(*each.evidence, *best.evidence),
    )


def _without_waiting(
    waited: Sequence[BlamedInCollective], stacks: Sequence[ProcessStacks], notes: list[str], *, keep_all: bool = True
) -> list[Blamed]:
    """Drop ranks whose stacks show them waiting; with `keep_all`, only if some suspect remains."""
    absent = [each for each in waited if each.kind in ("never_joined", "no_dump")]
    suspected = {rank for each in absent for rank in each.ranks}
    if len(suspected) < 2 and keep_all:
        return list(waited)
    reader = StateReader()
    waits = {
        process.rank
        for process in stacks
        if process.kind == "rank" and process.rank in suspected and reader.read(process).activity.doing == "others"
    }
    if keep_all and suspected <= waits:
        return list(waited)
    kept: list[Blamed] = []
    for each in waited:
        ranks = tuple(rank for rank in each.ranks if rank not in waits) if each in absent else each.ranks
        if ranks:
            kept.append(msgspec.structs.replace(each, ranks=ranks))
    if waits & suspected:
        notes.append(
            f"{ranks_in_words(sorted(waits & suspected))} also waits, by its stack, in an unrecorded operation"
        )
    return kept


def _verdict(
    suspects: Sequence[Blamed], notes: Sequence[str], by_wait: WaitVerdict | None, by_stack: StackVerdict | None
) -> HangVerdict:
    ranks = tuple(sorted({rank for each in suspects for rank in each.ranks}))
    nodes = tuple(dict.fromkeys(node for each in suspects for node in each.nodes))
    victims = tuple(rank for rank in (by_wait.victims if by_wait else ()) if rank not in ranks)
    is_single = bool(suspects) and all(len(each.nodes or each.ranks) == 1 for each in suspects)
    scope: Literal["machine", "group", "nobody"] = "machine" if is_single else "group" if suspects else "nobody"
    return HangVerdict(
        suspects=tuple(suspects),
        ranks=ranks,
        nodes=nodes,
        scope=scope,
        confidence=max((each.confidence for each in suspects), default=0.0),
        victims=victims,
        summary=_summary(suspects, nodes, victims, scope),
        evidence=tuple(dict.fromkeys(line for each in suspects for line in each.evidence))[:_EVIDENCE_MOST],
        notes=tuple(dict.fromkeys(notes)),
        collectives=by_wait,
        stacks=by_stack,
    )


def _summary(suspects: Sequence[Blamed], nodes: Sequence[str], victims: Sequence[int], scope: str) -> str:
    if not suspects:
        return "no evidence shows which rank blocks the job"
    first = suspects[0]
    where = f" ({machines_in_words(nodes)})" if nodes else ""
    more = f"; {len(suspects) - 1} more suspects" if len(suspects) > 1 else ""
    waiting = f"; {len(victims)} {'ranks wait' if len(victims) > 1 else 'rank waits'} for it" if victims else ""
    sure = "" if scope == "machine" else "; the evidence names no single machine"
    ranks = {rank for each in suspects for rank in each.ranks}
    whole = f" [suspects: ranks {in_ranges(ranks)}]" if len(suspects) > 1 else ""
    return f"{first.reason}{where}{more}{waiting}{sure}{whole}"
