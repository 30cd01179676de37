"""A slow job's stacks, taken in rounds: which group of ranks stands elsewhere than most, and how often. Pure.

ByteRobust §5. A job that goes on is looked at some times: in each round the stacks are grouped as those of a job that
hangs, and the parallel group with the most outliers is flagged (`holdfast.engines.slow.stack_vote`). A round in which
too few ranks could be read counts as no round, and another one is taken in its place.
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
from holdfast.settings.slow import SlowPolicy
from holdfast.topology import Mesh, MeshError, Topology
from holdfast_analyzer.engines.hang.hang_answers import Answers

ROUND_S = 2.0
"""A node's round takes no longer; what has not answered so long and `answer_s` behind the question is done without."""

VALID = timedelta(seconds=60)
"""An agent obeys a request that is no older, by its own clock."""

ATTEMPTS_PER_ROUND_MAX = 2
"""Rounds taken for each planned one, at most: where stacks cannot be read the analysis still ends."""

RANKS_TOLD_MAX = 256
FRAMES_SHOWN = 3


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where the job's ranks are: `nodes` by node rank."""

    topology: Topology
    nodes: dict[int, str]

    @property
    def node_of_rank(self) -> dict[int, str]:
        """The machine of each rank, as far as it is known."""
        return {rank: node for place, node in self.nodes.items() if node for rank in self.topology.ranks_of(place)}

    def nodes_of(self, ranks: tuple[int, ...]) -> tuple[str, ...]:
        """The machines of these ranks, as far as they are known."""
        of_ranks = (self.nodes.get(self.topology.node_rank_of(rank), "") for rank in ranks)
        return tuple(dict.fromkeys(filter(None, of_ranks)))


class Ballot:
    """The rounds of one analysis, one after the other."""

    def __init__(
        self, asked: str, job: str, generation: int, place: Place, policy: SlowPolicy, first: datetime
    ) -> None:
        """The first round is due at `first`."""
        self._asked = asked
        self._job = job
        self._generation = generation
        self._place = place
        self._policy = policy
        self._next_at = first
        self._under_way: tuple[TraceOrder, datetime] | None = None
        self._answers = Answers({})
        self._groups: list[VotedGroup | None] = []
        self.rounds: list[StackRound] = []
        self.lines: list[str] = []

    def takes(self, trace: str) -> bool:
        """Whether these stacks are of the round under way."""
        return self._under_way is not None and self._under_way[0].id == trace

    def add(self, event: StackDump | CollectiveTrace) -> None:
        """A part of a node's answer."""
        if self.takes(event.trace):
            self._answers.add(event)

    def due(self, now: datetime) -> TraceOrder | None:
        """The next round, if it is time; what has come of the last one is judged first."""
        if self._under_way is not None:
            wanted, at = self._under_way
            missing = self._answers.missing
            if missing and (now - at).total_seconds() < self._policy.answer_s + ROUND_S:
                return None
            self._judge(at, missing)
            self._under_way = None
        if self.is_over or now < self._next_at:
            return None
        trace = derived_id(self._asked, "round", len(self.rounds))
        wanted = TraceOrder(id=trace, job=self._job, generation=self._generation, until=now + VALID)
        self._under_way, self._answers = (wanted, now), Answers(self._place.node_of_rank)
        self._next_at = now + timedelta(seconds=self._policy.vote_every_s)
        return wanted

    @property
    def is_over(self) -> bool:
        """True if the planned number of rounds count, or no more are to be taken."""
        planned = self._policy.vote_rounds
        return len(self._groups) >= planned or len(self.rounds) >= ATTEMPTS_PER_ROUND_MAX * planned

    @property
    def vote(self) -> StackVote:
        """What the rounds come to."""
        discarded = len(self.rounds) - len(self._groups)
        return degrader(self._groups, planned=self._policy.vote_rounds, discarded=discarded)

    @property
    def flagged(self) -> tuple[FlaggedGroup, ...]:
        """Who was flagged how often, most often first."""
        return tuple(self._told(group, times) for group, times in self.vote.flagged)

    def nodes_of(self, group: VotedGroup) -> tuple[str, ...]:
        """The machines of a group."""
        return self._place.nodes_of(group.ranks)

    def _judge(self, at: datetime, missing: tuple[str, ...]) -> None:
        topology = self._place.topology
        processes = [process for process in self._answers.processes if process.rank is not None]
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
            outliers=verdict.outliers[:RANKS_TOLD_MAX],
            flagged=self._told(group) if group else None,
            unanswered=missing,
        )
        self.rounds.append(found)
        unread = tuple(rank for rank in range(topology.mesh.world_size) if rank not in read)[:RANKS_TOLD_MAX]
        self.lines.append(_line(len(self.rounds), found, group, verdict, unread))

    def _told(self, group: VotedGroup, times: int = 1) -> FlaggedGroup:
        return FlaggedGroup(
            kind=group.kind, ranks=group.ranks[:RANKS_TOLD_MAX], nodes=self.nodes_of(group), times=times
        )


def place_of(told: Mapping[int, CollectivesProfiled]) -> Place | None:
    """Where the ranks are, by what the nodes have told; None: nobody has, or it does not fit together."""
    if not told:
        return None
    one = next(iter(told.values()))
    try:
        topology = Topology.of(one.nnodes, one.nproc_per_node, Mesh.parse(one.mesh) if one.mesh else None)
    except MeshError:
        return None
    return Place(topology=topology, nodes={rank: event.node for rank, event in sorted(told.items()) if event.node})


def _line(
    number: int, found: StackRound, group: VotedGroup | None, verdict: StackVerdict, unread: tuple[int, ...]
) -> str:
    if not found.is_counted:
        return f"round {number} does not count: the stacks of {ranks_in_words(unread)} could not be read"
    if not found.outliers:
        return f"round {number}: none of {found.read} ranks stands elsewhere than most"
    outliers = set(found.outliers)
    stacks = (it.stack for it in verdict.groups if it.kind == "rank" and not it.is_healthy and outliers & set(it.ranks))
    where = " < ".join(next(stacks, ())[:FRAMES_SHOWN])
    flags = f"; flagged: {in_words(group)}" if group else "; they are most, and nobody is flagged"
    stand = "stand" if len(outliers) > 1 else "stands"
    return f"round {number}: {ranks_in_words(found.outliers)} {stand} elsewhere than most ({where}){flags}"
