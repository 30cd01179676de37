"""Wait-for analysis of a hanging job: collectives first, then the ranks inside the blocking one. Pure.

FT-HSDP §2.3. A rank that waits is a victim, however many wait for it; the ranks at the end of every chain are at fault.
A chain ends in a rank that others wait for and that waits for no other, in an operation that all have joined and that
does not end, or in a circle. The last two leave several ranks; `culprits` finds the fewest that explain all of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Literal

import msgspec

from holdfast.engines.hang.graph.collective_graph import WaitGraph, wait_graph
from holdfast.engines.hang.graph.consistency import latest_of_each, marked_unread, outdated_ranks
from holdfast.engines.hang.graph.culprits import (
    Candidates,
    chain_ends,
    circle_candidates,
    exchange_candidates,
    fewest_culprits,
    joined_candidates,
    lost_candidates,
    skipping_candidates,
)
from holdfast.engines.hang.graph.mismatch import Mismatch, mismatches
from holdfast.engines.hang.graph.progress import progress_of
from holdfast.engines.wording import ranks_in_words
from holdfast.events.parts.traces import Blamed, RankTrace
from holdfast.topology import Mesh

_FEW_SHARE = 3
"""Ratio of members that have not joined an operation to those that have, above which the few are suspected."""

_BEHIND_MOST = 1 / 4
"""Share of the ranks: more than this on several machines seldom fail at once."""

BlameKind = Literal["never_joined", "joined_not_moving", "mismatch", "no_dump"]


class BlamedInCollective(Blamed, frozen=True, kw_only=True, omit_defaults=True):
    """Ranks that a collective waits for. Among several ranks at least one is at fault, and nothing shows which.
    `group`: the name of the process group; `sequence`: its collective that does not end."""

    kind: BlameKind
    group: str = ""
    group_description: str = ""
    operation: str = ""
    sequence: int = 0


class WaitVerdict(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Verdict from the collectives. `victims` wait, directly or indirectly, for the blamed ranks."""

    blamed: tuple[BlamedInCollective, ...] = ()
    victims: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()


def judge_collectives(
    traces: Sequence[RankTrace],
    mesh: Mesh | None = None,
    ranks_per_node: int | None = None,
    waiting: Set[int] = frozenset(),
) -> WaitVerdict:
    """Follow the wait-for graph to the ranks that wait for no other. O(records + members of the groups that block).
    `mesh` gives the number of ranks if no dump does; `ranks_per_node` groups ranks into machines. `waiting`: ranks
    without a trace that are known to wait."""
    node_of = {trace.rank: trace.node for trace in traces if trace.node}
    traces, several = latest_of_each(traces)
    notes = [f"there are several traces of {ranks_in_words(several)}; the last of each counts"] if several else []
    progress = progress_of(traces, mesh)
    if old := outdated_ranks(traces, progress):
        reason = f"the traces of {ranks_in_words(old)} are older than others, which ended what those have not begun"
        notes.append(f"{reason}: they are left out")
        traces = marked_unread(traces, old)
        progress = progress_of(traces, mesh)
    graph = wait_graph(progress)
    judge = _Judge(graph, ranks_per_node, node_of, waiting)
    if judge.went_on(old):
        return WaitVerdict(notes=(*notes, "the job went on while the traces were taken; take them again if it hangs"))
    verdict = judge.verdict(mismatches(graph, traces))
    return msgspec.structs.replace(verdict, notes=(*notes, *verdict.notes))


class _Judge:
    def __init__(
        self, graph: WaitGraph, ranks_per_node: int | None, node_of: dict[int, str], waiting: Set[int]
    ) -> None:
        self.graph = graph
        self.ranks_per_node = ranks_per_node
        self.node_of = node_of
        self.waiting = waiting
        self.blamed: list[BlamedInCollective] = []

    def went_on(self, old: Sequence[int]) -> bool:
        """True if too many ranks are behind what others have ended: the traces are of several moments."""
        behind = self._late().union(old)
        return len(behind) > max(2, _BEHIND_MOST * len(self.graph.waits_in)) and len(self._places(behind)) > 1

    def verdict(self, odd: Sequence[Mismatch]) -> WaitVerdict:
        apart = {rank for mismatch in odd if mismatch.decided for rank in mismatch.odd}
        late = self._late()
        found = chain_ends(self.graph, apart | set(late), {mismatch.operation for mismatch in odd}, self.waiting)
        for mismatch in odd:
            self._blame_mismatch(mismatch)
        for rank in sorted(set(late) - apart):
            self._blame_late(rank)
        absent = {rank: operation for rank, operation in found.ranks.items() if rank not in late and rank not in apart}
        for operation in self._entered_by_few(absent):
            self._blame_few(operation)
            absent = {rank: first for rank, first in absent.items() if rank not in self.graph.missing(operation)}
        for rank, operation in sorted(absent.items()):
            self._blame_absent(rank, operation)
        if not self.blamed and (odd_one := skipping_candidates(self.graph)):
            self._blame_candidates(odd_one)
        certain = {rank for each in self.blamed for rank in each.ranks}
        left = [joined_candidates(self.graph, operation, self.waiting, self._places) for operation in found.operations]
        left += [exchange_candidates(self.graph, exchange, self.waiting) for exchange in found.exchanges]
        left += [circle_candidates(self.graph, circle, self.waiting) for circle in found.circles]
        if not certain and not left:
            left = lost_candidates(self.graph, found.lost, self.waiting, self._places)
        held_up = self._held_up(certain)
        left = [each for each in left if not certain & set(each.ranks)]
        unexplained = [each for each in left if not self._may_wait(each, certain, held_up)]
        for each in fewest_culprits(unexplained, self._node):
            has_dump = any(rank in self.graph.progress.traced for rank in each.ranks)
            self._blame_candidates(each if has_dump else msgspec.structs.replace(each, kind="no_dump"))
        suspects = {rank for each in self.blamed for rank in each.ranks}
        victims = sorted(rank for rank, waits in self.graph.waits_in.items() if waits and rank not in suspects)
        return WaitVerdict(
            blamed=tuple(sorted(self.blamed, key=lambda each: (-each.confidence, each.ranks))),
            victims=tuple(victims) if self.blamed else (),
            notes=tuple(self._notes(suspects)),
        )

    def _late(self) -> set[int]:
        """Return ranks on which operations are pending that have ended on the other members."""
        late: set[int] = set()
        by_group: defaultdict[str, set[int]] = defaultdict(set)
        for rank, lags in self.graph.lags.items():
            for lag in lags:
                by_group[lag.group.key].add(rank)
        for key, ranks in by_group.items():
            members = [rank for rank in self.graph.progress.groups[key].ranks if rank in self.graph.waits_in]
            # If most of them are late, the rank that is ahead is the odd one.
            if 2 * len(ranks) <= len(members):
                late |= ranks
        return late

    def _entered_by_few(self, absent: Mapping[int, int]) -> list[int]:
        """Return operations that few have joined, while no rank waits for the many others in any other operation. A few
        ranks that run what the others do not is likelier than many ranks that stopped on several machines."""
        idle_in: dict[int, list[int]] = {}
        needed: set[int] = set()
        for index, operation in enumerate(self.graph.operations):
            idle = [rank for rank in operation.missing_here if rank in absent]
            if len(idle) >= _FEW_SHARE * len(operation.joined) and len(self._places(idle)) > 1:
                idle_in[index] = idle
            else:
                needed.update(idle)
        return [index for index, idle in idle_in.items() if needed.isdisjoint(idle)]

    def _blame_few(self, index: int) -> None:
        operation = self.graph.operations[index]
        who, what = ranks_in_words(operation.joined), self._words(index)
        evidence = [
            self._waiting(index),
            f"of {ranks_in_words(operation.missing_here)}, which have not joined it, most wait for no other rank",
        ]
        self._add(operation.joined, "mismatch", f"{who} entered {what} and most members did not", 0.6, evidence, index)

    def _places(self, ranks: Iterable[int]) -> set[str]:
        """Return the ranks' machines; each rank is its own where machines are unknown."""
        return {self._node(rank) or f"rank {rank}" for rank in ranks}

    def _may_wait(self, found: Candidates, certain: set[int], held_up: Sequence[Set[int]]) -> bool:
        """True if candidates with little evidence may themselves wait for ranks that are certainly at fault."""
        if found.kind == "joined_not_moving":
            is_clipped = not self.graph.progress.clipped.isdisjoint(found.ranks)
            return bool(certain) and (is_clipped or self.graph.operations[found.operation].group.is_inferred)
        return all(any(rank in members for members in held_up) for rank in found.ranks)

    def _held_up(self, certain: set[int]) -> list[set[int]]:
        """Return the members of each collective that waits for ranks that are certainly at fault."""
        groups = {
            operation.group.key: operation.group.ranks
            for operation in self.graph.operations
            if not operation.is_p2p and certain.intersection(operation.missing_here)
        }
        return [set(ranks) for ranks in groups.values()]

    def _blame_mismatch(self, mismatch: Mismatch) -> None:
        operation = self.graph.operations[mismatch.operation]
        what = self._words(mismatch.operation)
        usual = [rank for rank in operation.joined if rank not in mismatch.odd]
        evidence = [f"{ranks_in_words(mismatch.odd)} entered {what} with {mismatch.words}"]
        if usual:
            evidence.append(f"the other members agree: {ranks_in_words(usual)}")
        groups = [(rank,) for rank in mismatch.odd] if mismatch.decided else [mismatch.odd]
        for ranks in groups:
            reason = f"{ranks_in_words(ranks)} entered {what} with {mismatch.words}"
            self._add(ranks, "mismatch", reason, 0.95 if mismatch.decided else 0.5, evidence, mismatch.operation)

    def _blame_late(self, rank: int) -> None:
        lags = self.graph.lags[rank]
        first = lags[0]
        name = _named(first.group.name, first.group.description)
        through = sorted(
            other for other, done in first.group.done.items() if done >= first.record.sequence and other != rank
        )
        evidence = [
            f"on rank {rank} {first.record.operation} {first.record.sequence} of {name} is still pending, which"
            f" {ranks_in_words(through) if through else 'its peer'} have ended",
            f"{len(lags)} operations are pending on rank {rank} alone",
        ]
        reason = f"rank {rank} joined {first.record.operation} {first.record.sequence} of {name} and does not move"
        waiting = self._who_waits(rank)
        if waiting is not None:
            evidence.append(f"{self._waiting(waiting)}, which rank {rank} has not joined")
        self.blamed.append(
            BlamedInCollective(
                ranks=(rank,),
                nodes=self._nodes((rank,)),
                reason=reason,
                confidence=0.95,
                evidence=tuple(evidence),
                kind="joined_not_moving",
                group=first.group.name,
                group_description=first.group.description,
                operation=first.record.operation,
                sequence=first.record.sequence,
            )
        )

    def _blame_absent(self, rank: int, operation: int) -> None:
        what = self._words(operation)
        pending = self.graph.waits_in.get(rank, [])
        evidence = [
            f"{self._waiting(operation)}, which rank {rank} has not joined",
            f"rank {rank} waits for no other rank" if not pending else f"rank {rank} waits only for itself",
        ]
        self._add((rank,), "never_joined", f"rank {rank} never joined {what}", 0.95, evidence, operation)

    def _blame_candidates(self, found: Candidates) -> None:
        what = self._words(found.operation)
        ranks = found.ranks
        who = f"{'one of ' if len(ranks) > 1 else ''}{ranks_in_words(ranks)}"
        if found.kind == "no_dump":
            reason = f"{who} has left no dump, and {what} waits for it"
        elif found.kind == "never_joined":
            reason = f"{who} holds up {what}, in which ranks wait for each other"
        else:
            reason = f"all have joined {what} and it does not end: {who}"
        evidence = [self._waiting(operation) for operation in found.because[:8]]
        self._add(ranks, found.kind, reason, found.confidence, [*evidence, *found.words], found.operation)

    def _add(
        self,
        ranks: Iterable[int],
        kind: BlameKind,
        reason: str,
        confidence: float,
        evidence: Iterable[str],
        operation: int,
    ) -> None:
        of = self.graph.operations[operation]
        members = tuple(sorted(ranks))
        self.blamed.append(
            BlamedInCollective(
                ranks=members,
                nodes=self._nodes(members),
                reason=reason,
                confidence=confidence,
                evidence=tuple(evidence),
                kind=kind,
                group=of.group.name,
                group_description=of.group.description,
                operation=of.name,
                sequence=of.sequence,
            )
        )

    def _who_waits(self, rank: int) -> int | None:
        """Return the operation in which most ranks wait for `rank`."""
        found = [index for index, operation in enumerate(self.graph.operations) if rank in operation.missing_here]
        return max(found, key=lambda index: len(self.graph.operations[index].joined), default=None)

    def _words(self, index: int) -> str:
        operation = self.graph.operations[index]
        return f"{operation.name} {operation.sequence} of {_named(operation.group.name, operation.group.description)}"

    def _waiting(self, index: int) -> str:
        joined = self.graph.operations[index].joined
        return f"{ranks_in_words(joined)} {'wait' if len(joined) > 1 else 'waits'} in {self._words(index)}"

    def _node(self, rank: int) -> str:
        if rank in self.node_of:
            return self.node_of[rank]
        return str(rank // self.ranks_per_node) if self.ranks_per_node else ""

    def _nodes(self, ranks: Iterable[int]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(node for node in map(self._node, ranks) if node))

    def _notes(self, suspects: set[int]) -> Iterable[str]:
        silent = [rank for rank in self.graph.progress.silent() if rank not in suspects]
        if silent:
            yield f"no trace of {ranks_in_words(silent)}: they may wait like others, or have ended"
        if not self.blamed and any(self.graph.waits_in.values()):
            yield "operations are pending, but nothing shows which rank holds them up"


def _named(name: str, description: str) -> str:
    return f"group {name} ({description})" if description and description != "undefined" else f"group {name}"
