"""Stacks of a slow job, taken in rounds: the group of ranks whose stacks are outliers most often. Pure.

ByteRobust §5. In each round the stacks are grouped as for a hang, and the parallel group with the most outliers is
flagged (`holdfast.engines.slow.stack_vote`). A round in which too few ranks could be read does not count and is
repeated.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

import msgspec

from holdfast.engines.hang.stacks.stack_groups import StackVerdict, judge_stacks
from holdfast.engines.slow.stack_vote import StackVote, VotedGroup, counts, degrader, flagged, in_words
from holdfast.engines.wording import ranks_in_words
from holdfast.events import CollectivesProfiled, CollectiveTrace, StackDump
from holdfast.events.parts.samples import FlaggedGroup, StackRound
from holdfast.ids import derived_id
from holdfast.orders.trace import TraceOrder
from holdfast.settings.findings.slow import SlowPolicy
from holdfast.topology import Mesh, MeshError, Topology
from holdfast_analyzer.engines.hang.hang_answers import TraceAnswers
from holdfast_analyzer.engines.slow.slow_location import shared_machines

ROUND_S = 2.0
"""Longest time that a round takes on a node. A node counts as silent `answer_s` later."""

VALID = timedelta(seconds=60)
"""Age at which an agent, by its own clock, ignores a request."""

ATTEMPTS_PER_ROUND_MAX = 2
"""Most rounds for each planned one: the analysis must end even if stacks cannot be read."""

EXPLAINS = 0.5
"""Share of the lost time that a wait for processors must explain to be the reason for it."""

RANKS_SHOWN_MAX = 256
FRAMES_SHOWN = 3


class JobPlacement(msgspec.Struct, frozen=True, kw_only=True):
    """The nodes of the job's ranks: `nodes` by node rank. `sharing`: node ranks whose machine has several of them."""

    topology: Topology
    nodes: dict[int, str]
    sharing: frozenset[int] = frozenset()

    @property
    def node_of_rank(self) -> dict[int, str]:
        return {rank: node for place, node in self.nodes.items() if node for rank in self.topology.ranks_of(place)}

    def nodes_of(self, ranks: tuple[int, ...]) -> tuple[str, ...]:
        of_ranks = (self.nodes.get(self.topology.node_rank_of(rank), "") for rank in ranks)
        return tuple(dict.fromkeys(filter(None, of_ranks)))


class Ballot:
    """The rounds of one analysis, one after the other."""

    def __init__(
        self, asked: str, job: str, generation: int, place: JobPlacement, policy: SlowPolicy, first: datetime
    ) -> None:
        """The first round is due at `first`."""
        self._asked = asked
        self._job = job
        self._generation = generation
        self._place = place
        self._policy = policy
        self._next_at = first
        self._round: tuple[TraceOrder, datetime] | None = None
        self._answers = TraceAnswers({})
        self._groups: list[VotedGroup | None] = []
        self.rounds: list[StackRound] = []
        self.lines: list[str] = []
        self._waits: dict[int, list[tuple[datetime, float]]] = {}

    def takes(self, trace: str) -> bool:
        """Return True if these stacks are of the round under way."""
        return self._round is not None and self._round[0].id == trace

    def add(self, event: StackDump | CollectiveTrace) -> None:
        if self.takes(event.trace):
            self._answers.add(event)

    def due(self, now: datetime) -> TraceOrder | None:
        """Judge the last round if it is over, and return the order for the next one if it is time."""
        if self._round is not None:
            wanted, at = self._round
            missing = self._answers.missing
            if missing and (now - at).total_seconds() < self._policy.answer_s + ROUND_S:
                return None
            self._judge(at, missing)
            self._round = None
        if self.is_over or now < self._next_at:
            return None
        trace = derived_id(self._asked, "round", len(self.rounds))
        wanted = TraceOrder(id=trace, job=self._job, generation=self._generation, until=now + VALID)
        self._round, self._answers = (wanted, now), TraceAnswers(self._place.node_of_rank)
        self._next_at = now + timedelta(seconds=self._policy.vote_every_s)
        return wanted

    @property
    def is_over(self) -> bool:
        """True if the planned number of rounds count, or no more are to be taken."""
        planned = self._policy.vote_rounds
        return len(self._groups) >= planned or len(self.rounds) >= ATTEMPTS_PER_ROUND_MAX * planned

    @property
    def vote(self) -> StackVote:
        discarded = len(self.rounds) - len(self._groups)
        return degrader(self._groups, planned=self._policy.vote_rounds, discarded=discarded)

    @property
    def flagged(self) -> tuple[FlaggedGroup, ...]:
        """Flagged groups, the most frequent first."""
        return tuple(self._shown(group, times) for group, times in self.vote.flagged)

    def nodes_of(self, group: VotedGroup) -> tuple[str, ...]:
        return self._place.nodes_of(group.ranks)

    def excuse(self, group: VotedGroup, slowdown: float) -> str:
        """Return why a flagged group is not at fault, though it is late: it waits for processors that it shares with
        other nodes of the job. "": no such reason."""
        topology = self._place.topology
        if not {topology.node_rank_of(rank) for rank in group.ranks} <= self._place.sharing:
            return ""
        share = max(map(self._waited_share, group.ranks), default=0.0)
        if share < EXPLAINS * (1.0 - 1.0 / slowdown):
            return ""
        return f"it waited for {share:.0%} of the time for processors that other nodes of its machine use as well"

    def _waited_share(self, rank: int) -> float:
        """Return the share of the time between its first and its last round for which a rank waited for a processor."""
        known = self._waits.get(rank, [])
        if len(known) < 2:
            return 0.0
        (first, before_s), (last, now_s) = known[0], known[-1]
        return (now_s - before_s) / max((last - first).total_seconds(), 1e-3)

    def _judge(self, at: datetime, missing: tuple[str, ...]) -> None:
        topology = self._place.topology
        processes = [process for process in self._answers.processes if process.rank is not None]
        for process in processes:
            if process.rank is not None and process.waited_s is not None:
                self._waits.setdefault(process.rank, []).append((at, process.waited_s))
        verdict = judge_stacks(processes, topology.mesh, topology.ranks_per_node)
        read = {process.rank for process in processes if process.kind == "rank" and process.threads}
        is_counted = counts(len(read), len(verdict.outliers), topology.mesh.world_size)
        group = flagged(verdict.outliers, topology.mesh, topology.ranks_per_node) if is_counted else None
        if is_counted:
            self._groups.append(group)
        found = StackRound(
            at=at,
            read=len(read),
            is_counted=is_counted,
            outliers=verdict.outliers[:RANKS_SHOWN_MAX],
            flagged=self._shown(group) if group else None,
            unanswered=missing,
        )
        self.rounds.append(found)
        unread = tuple(rank for rank in range(topology.mesh.world_size) if rank not in read)[:RANKS_SHOWN_MAX]
        self.lines.append(_line(len(self.rounds), found, group, verdict, unread))

    def _shown(self, group: VotedGroup, times: int = 1) -> FlaggedGroup:
        return FlaggedGroup(
            kind=group.kind, ranks=group.ranks[:RANKS_SHOWN_MAX], nodes=self.nodes_of(group), times=times
        )


def placement_of(profiled: Mapping[int, CollectivesProfiled]) -> JobPlacement | None:
    """Return the placement that the profiles report; None: there are none, or the mesh does not fit."""
    if not profiled:
        return None
    one = next(iter(profiled.values()))
    try:
        topology = Topology.of(one.nnodes, one.nproc_per_node, Mesh.parse(one.mesh) if one.mesh else None)
    except MeshError:
        return None
    return JobPlacement(
        topology=topology,
        nodes={rank: event.node for rank, event in sorted(profiled.items()) if event.node},
        sharing=frozenset(shared_machines({rank: event.boot_id for rank, event in profiled.items()})),
    )


def _line(
    number: int, found: StackRound, group: VotedGroup | None, verdict: StackVerdict, unread: tuple[int, ...]
) -> str:
    if not found.is_counted:
        return f"round {number} does not count: the stacks of {ranks_in_words(unread)} could not be read"
    if not found.outliers:
        return f"round {number}: no outlier among the stacks of {found.read} ranks"
    outliers = set(found.outliers)
    stacks = (it.stack for it in verdict.groups if it.kind == "rank" and not it.is_healthy and outliers & set(it.ranks))
    where = " < ".join(next(stacks, ())[:FRAMES_SHOWN])
    flags = f"; flagged: {in_words(group)}" if group else "; they are the majority, so no group is flagged"
    are = "are outliers" if len(outliers) > 1 else "is an outlier"
    return f"round {number}: {ranks_in_words(found.outliers)} {are} ({where}){flags}"
