"""Whether a job makes progress, by what its ranks note in their ledgers; agents tell it once a second. Pure.

A job stands still when none of its ranks has noted anything for longer than a limit that follows its own pace and the
phase it is in. Some of them inside a collective and others not in it says more, and is looked at sooner. Only what
agents say counts, never that they say nothing: a node that is not heard of is the standby service's business, and as
long as one is missing nothing is concluded here.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from holdfast.events import Progress, RanksFinished
from holdfast.events.findings import HangSign
from holdfast.events.parts.ranks import RankProgress
from holdfast.settings.hang import HangPolicy
from holdfast.topology import Mesh, MeshError

HEARD_WITHIN_S = 4.0
"""What a node has said longer ago tells nothing of how it stands now."""

CYCLE = frozenset({"train", "data", "forward", "backward", "optimizer", "init"})
"""Phases that each step goes through; a script that names none stays in the first one it was in."""

STEP_UNKNOWN_S = 12.0
"""What a step counts as until the job's pace is known."""

START = "start"
RENDEZVOUS = "rendezvous"
RESTORE = "restore"


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """A job that stands still: since when, by what limit, and which ranks stand where.

    `is_first_start`: it has made no step yet, and may be a job that makes none.
    """

    sign: HangSign
    since: datetime
    still_s: float
    limit_s: float
    phase: str
    step: int
    standing: tuple[int, ...]
    waiting: tuple[int, ...]
    cause: str
    is_first_start: bool = False


class ProgressWatch:
    """What is known of one generation of a job, and how long its phases take."""

    def __init__(self, policy: HangPolicy) -> None:
        self._policy = policy
        self.generation = -1
        self.world_size = 0
        self.nproc_per_node = 0
        self.mesh: Mesh | None = None
        self.cause = ""
        self._ranks: dict[int, RankProgress] = {}
        self._node_of: dict[int, str] = {}
        self._heard: dict[str, datetime] = {}
        self._said: dict[str, datetime] = {}
        self._over: set[str] = set()
        self._longest_s: dict[str, float] = {}

    @property
    def node_of_rank(self) -> dict[int, str]:
        """Where each rank is, as far as it was heard of."""
        return dict(self._node_of)

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes of this generation that have told of it, and still run ranks."""
        return tuple(sorted(self._heard.keys() - self._over))

    @property
    def still_s(self) -> float:
        """For how long no rank has noted anything, as of the last words."""
        return min((rank.since_change_s for rank in self._ranks.values() if not rank.has_ended), default=0.0)

    def take(self, event: Progress, now: datetime) -> None:
        """Take in what one node says."""
        generation = event.generation or 0
        if generation < self.generation or event.node is None or not event.world_size:
            return
        if generation > self.generation:
            self.generation = generation
            self._ranks, self._node_of, self._heard, self._said, self._over = {}, {}, {}, {}, set()
        if event.at < self._said.get(event.node, event.at):
            return
        self._said[event.node] = event.at
        self.world_size, self.nproc_per_node, self.mesh = event.world_size, event.nproc_per_node, _mesh(event.mesh)
        self.cause = event.id
        self._heard[event.node] = now
        for rank in event.ranks:
            if rank.rank >= event.world_size:
                continue
            self._learn(self._ranks.get(rank.rank), rank)
            self._ranks[rank.rank] = rank
            self._node_of[rank.rank] = event.node

    def over(self, event: RanksFinished, now: datetime) -> None:
        """All ranks of one node have ended by themselves: it tells nothing more, and is not missed."""
        if event.node is None or event.generation != self.generation:
            return
        self._over.add(event.node)
        self._heard[event.node] = now
        for rank in event.ranks:
            last = self._ranks.get(rank, RankProgress(rank=rank, step=-1, phase="exit"))
            self._ranks[rank] = msgspec.structs.replace(last, has_ended=True)
            self._node_of[rank] = event.node

    def is_heard(self, now: datetime) -> bool:
        """Whether every rank of the generation was told of just now, or has ended."""
        return (
            0 < self.world_size == len(self._ranks)
            and not self.silent(now)
            and set(self._node_of.values()) == self._heard.keys()
        )

    def silent(self, now: datetime) -> tuple[str, ...]:
        """The nodes that have told of their ranks, and do so no more."""
        recently = timedelta(seconds=HEARD_WITHIN_S)
        return tuple(sorted(node for node in self.nodes if now - self._heard[node] > recently))

    @property
    def ranks_told(self) -> int:
        """Of how many ranks of the generation something was heard."""
        return len(self._ranks)

    def standing(self, step_s: float | None, now: datetime) -> Standing | None:
        """How the job stands still; None: it does not, or nobody knows. `step_s`: a long step of it (P99)."""
        if not self.is_heard(now):
            return None
        ranks = [rank for rank in self._ranks.values() if not rank.has_ended]
        if not ranks:
            return None
        waiting = _waiting(ranks)
        outside = [rank for rank in ranks if rank not in waiting]
        still_s = min(rank.since_change_s for rank in ranks)
        some_wait = bool(waiting) and bool(outside)
        # Who waits in a collective does so for the others: it is their phase that tells how long that may be. Whoever
        # is held for tests is so inside of one.
        held = [rank for rank in waiting if rank.phase == "held"]
        slowest = max([*outside, *held] or ranks, key=lambda rank: self._limit_s(rank, step_s, some_wait=some_wait))
        limit_s = self._limit_s(slowest, step_s, some_wait=some_wait)
        if not outside and not held and _key(slowest) not in (START, "cycle"):
            # Whatever phase it is, nobody does the work of it: each waits for others that wait as well.
            limit_s = min(limit_s, self._cycle_limit_s(step_s, some_wait=False))
        sign: HangSign = "waiting" if some_wait else "no_traffic"
        if still_s < limit_s:
            sign, still_s = "no_step", min(rank.since_step_s for rank in ranks)
            if any(not rank.steps_done or _key(rank) != "cycle" for rank in ranks):
                return None
            limit_s = max(self._policy.working_s, limit_s)
            if still_s < limit_s:
                return None
        return Standing(
            sign=sign,
            since=now - timedelta(seconds=still_s),
            still_s=still_s,
            limit_s=limit_s,
            phase=slowest.phase,
            step=max(rank.step for rank in ranks),
            standing=tuple(rank.rank for rank in outside),
            waiting=tuple(rank.rank for rank in waiting),
            cause=self.cause,
            is_first_start=step_s is None and _key(slowest) == START,
        )

    def _limit_s(self, rank: RankProgress, step_s: float | None, *, some_wait: bool) -> float:
        policy, key = self._policy, _key(rank)
        if key == "cycle":
            return self._cycle_limit_s(step_s, some_wait=some_wait)
        limits = {
            START: self._start_limit_s(rank, step_s, some_wait=some_wait),
            "checkpoint": policy.checkpoint_s,
            "eval": policy.eval_s,
            "held": policy.held_s,
        }
        limit_s = limits.get(key, policy.phase_s)
        longest_s = self._longest_s.get(key)
        if longest_s is None:
            return limit_s
        learned_s = max(policy.floor_s, policy.learned_multiple * longest_s)
        # A start that restored from memory says little of one that reads the disk.
        return max(limit_s, learned_s) if key == START else min(limit_s, learned_s)

    def _cycle_limit_s(self, step_s: float | None, *, some_wait: bool) -> float:
        policy = self._policy
        floor_s = policy.waiting_floor_s if some_wait else policy.floor_s
        multiple = policy.waiting_multiple if some_wait else policy.step_multiple
        return max(floor_s, multiple * (STEP_UNKNOWN_S if step_s is None else step_s))

    def _start_limit_s(self, rank: RankProgress, step_s: float | None, *, some_wait: bool) -> float:
        """Before the first step. The controller's own limit to it (`[timeouts]`), which names nobody, comes later."""
        policy = self._policy
        if rank.phase == RESTORE:
            return policy.start_s
        # Of whoever has come to meet the others nothing else is to be expected.
        some_wait = some_wait or rank.phase == RENDEZVOUS
        if step_s is None:
            return policy.start_waiting_s if some_wait else policy.start_s
        if some_wait:
            return policy.restart_waiting_s + policy.waiting_multiple * step_s
        return policy.restart_s + policy.step_multiple * step_s

    def _learn(self, before: RankProgress | None, now: RankProgress) -> None:
        """A rank that has moved on was not hanging: so long it may take in that phase."""
        if before is None or now.since_change_s >= before.since_change_s:
            return
        key = _key(before)
        if key != "cycle":
            # It moved between two words of its node.
            still_s = before.since_change_s + 1.0
            self._longest_s[key] = max(self._longest_s.get(key, 0.0), still_s)


def _mesh(text: str | None) -> Mesh | None:
    try:
        return Mesh.parse(text) if text else None
    except MeshError:
        return None


def _waiting(ranks: Sequence[RankProgress]) -> list[RankProgress]:
    """Those inside a collective; where there is none yet, those that have come to meet the others."""
    inside = [rank for rank in ranks if rank.in_collective]
    return inside or [rank for rank in ranks if rank.phase == RENDEZVOUS]


def _key(rank: RankProgress) -> str:
    """What limits how long a rank may note nothing: its place in the life of a generation."""
    if rank.phase in (RENDEZVOUS, RESTORE) or not rank.steps_done:
        return START
    return "cycle" if rank.phase in CYCLE else rank.phase
