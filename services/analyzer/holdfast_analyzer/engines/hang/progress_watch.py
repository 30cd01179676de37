"""The progress of a job, by the ledgers of its ranks, which agents report once a second. Pure.

A job is stalled when none of its ranks has noted anything for longer than a limit, which follows the job's own pace and
its phase. The limit is shorter when some ranks are inside a collective and others are not. Silence of an agent proves
nothing: lost nodes are the standby service's business, and while a node is silent no stall is found.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from holdfast.events import Progress, RanksFinished
from holdfast.events.findings import HangSign
from holdfast.events.parts.ranks import RankProgress
from holdfast.settings.findings.hang import HangPolicy
from holdfast.topology import Mesh, MeshError

HEARD_WITHIN_S = 4.0
"""A node whose last report is older counts as silent."""

CLOCKS_APART = timedelta(minutes=1)
"""A report from further in the future is of a clock that is wrong."""

CYCLE = frozenset({"train", "data", "forward", "backward", "optimizer", "init"})
"""Phases that each step goes through. A script that names no phase stays in its first one."""

STEP_UNKNOWN_S = 12.0
"""Step time assumed until the job's pace is known."""

START = "start"
RENDEZVOUS = "rendezvous"
RESTORE = "restore"


class Stall(msgspec.Struct, frozen=True, kw_only=True):
    """A job without progress for longer than its limit."""

    sign: HangSign
    since: datetime
    still_s: float
    limit_s: float
    phase: str
    step: int
    outside: tuple[int, ...]
    """Ranks outside of collectives."""
    waiting: tuple[int, ...]
    """Ranks inside a collective."""
    cause: str
    is_first_start: bool = False
    """True if the job has made no step yet: it may be one that never makes any."""


class ProgressWatch:
    """Progress of the newest generation of a job, and the longest time that each phase has taken."""

    def __init__(self, policy: HangPolicy) -> None:
        self._policy = policy
        self.generation = -1
        self.world_size = 0
        self.nproc_per_node = 0
        self.mesh: Mesh | None = None
        self.cause = ""
        self._ranks: dict[int, RankProgress] = {}
        self._node_of: dict[int, str] = {}
        self._received_at: dict[str, datetime] = {}
        self._emitted_at: dict[str, datetime] = {}
        self._finished: set[str] = set()
        self._longest_s: dict[str, float] = {}

    @property
    def node_of_rank(self) -> dict[int, str]:
        return dict(self._node_of)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Nodes that have reported ranks of this generation and still run some."""
        return tuple(sorted(self._received_at.keys() - self._finished))

    @property
    def still_s(self) -> float:
        """Seconds since any rank noted anything, by the last reports."""
        return min((rank.since_change_s for rank in self._ranks.values() if not rank.has_ended), default=0.0)

    def take(self, event: Progress, now: datetime) -> None:
        generation = event.generation or 0
        if generation < self.generation or event.node is None or not event.world_size:
            return
        if generation > self.generation:
            self.generation = generation
            self._ranks, self._node_of, self._received_at, self._emitted_at, self._finished = {}, {}, {}, {}, set()
        last = self._emitted_at.get(event.node, event.at)
        # Unless the node's clock has been put back since.
        if event.at < last <= now + CLOCKS_APART:
            return
        self._emitted_at[event.node] = event.at
        self.world_size, self.nproc_per_node, self.mesh = event.world_size, event.nproc_per_node, _mesh(event.mesh)
        self.cause = event.id
        self._received_at[event.node] = now
        for rank in event.ranks:
            if rank.rank >= event.world_size:
                continue
            self._learn(self._ranks.get(rank.rank), rank)
            self._ranks[rank.rank] = rank
            self._node_of[rank.rank] = event.node

    def finished(self, event: RanksFinished, now: datetime) -> None:
        """Note that all ranks of a node have ended by themselves: it reports no more, and does not count as silent."""
        if event.node is None or event.generation != self.generation:
            return
        self._finished.add(event.node)
        self._received_at[event.node] = now
        for rank in event.ranks:
            last = self._ranks.get(rank, RankProgress(rank=rank, step=-1, phase="exit"))
            self._ranks[rank] = msgspec.structs.replace(last, has_ended=True)
            self._node_of[rank] = event.node

    def is_complete(self, now: datetime) -> bool:
        """Return True if every rank of the generation was reported recently, or has ended."""
        return (
            0 < self.world_size == len(self._ranks)
            and not self.silent_nodes(now)
            and set(self._node_of.values()) == self._received_at.keys()
        )

    def silent_nodes(self, now: datetime) -> tuple[str, ...]:
        recently = timedelta(seconds=HEARD_WITHIN_S)
        return tuple(sorted(node for node in self.nodes if now - self._received_at[node] > recently))

    @property
    def ranks_reported(self) -> int:
        return len(self._ranks)

    def stall(self, step_s: float | None, now: datetime) -> Stall | None:
        """Return the stall of the job; None: it makes progress, or a node is silent. `step_s`: its long step (P99)."""
        if not self.is_complete(now):
            return None
        ranks = [rank for rank in self._ranks.values() if not rank.has_ended]
        if not ranks:
            return None
        waiting = _waiting(ranks)
        outside = [rank for rank in ranks if rank not in waiting]
        still_s = min(rank.since_change_s for rank in ranks)
        some_wait = bool(waiting) and bool(outside)
        # A rank inside a collective (held for tests, too) waits for those outside, so their phase sets the limit.
        held = [rank for rank in waiting if rank.phase == "held"]
        slowest = max([*outside, *held] or ranks, key=lambda rank: self._limit_s(rank, step_s, some_wait=some_wait))
        limit_s = self._limit_s(slowest, step_s, some_wait=some_wait)
        if not outside and not held and _key(slowest) not in (START, "cycle"):
            # No rank does the work of its phase: each waits for others that wait as well.
            limit_s = min(limit_s, self._cycle_limit_s(step_s, some_wait=False))
        if any(rank.is_stopped for rank in ranks):
            limit_s = min(limit_s, self._policy.stopped_s)
        sign: HangSign = "waiting" if some_wait else "no_traffic"
        if still_s < limit_s:
            sign, still_s = "no_step", min(rank.since_step_s for rank in ranks)
            if any(not rank.steps_done or _key(rank) != "cycle" for rank in ranks):
                return None
            limit_s = max(self._policy.working_s, limit_s)
            if still_s < limit_s:
                return None
        return Stall(
            sign=sign,
            since=now - timedelta(seconds=still_s),
            still_s=still_s,
            limit_s=limit_s,
            phase=slowest.phase,
            step=max(rank.step for rank in ranks),
            outside=tuple(rank.rank for rank in outside),
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
        # A start that restored from memory predicts nothing about one that reads the disk.
        return max(limit_s, learned_s) if key == START else min(limit_s, learned_s)

    def _cycle_limit_s(self, step_s: float | None, *, some_wait: bool) -> float:
        policy = self._policy
        floor_s = policy.waiting_floor_s if some_wait else policy.floor_s
        multiple = policy.waiting_multiple if some_wait else policy.step_multiple
        return max(floor_s, multiple * (STEP_UNKNOWN_S if step_s is None else step_s))

    def _start_limit_s(self, rank: RankProgress, step_s: float | None, *, some_wait: bool) -> float:
        """Return the limit before the first step. The controller's limit (`[timeouts]`) is longer."""
        policy = self._policy
        if rank.phase == RESTORE:
            return policy.start_s
        # A rank at the rendezvous waits for the others by definition.
        some_wait = some_wait or rank.phase == RENDEZVOUS
        if step_s is None:
            return policy.start_waiting_s if some_wait else policy.start_s
        if some_wait:
            return policy.restart_waiting_s + policy.waiting_multiple * step_s
        return policy.restart_s + policy.step_multiple * step_s

    def _learn(self, before: RankProgress | None, now: RankProgress) -> None:
        """Learn how long a phase may take: a rank that has gone on was not hanging."""
        if before is None or now.since_change_s >= before.since_change_s:
            return
        key = _key(before)
        if key != "cycle":
            # It went on at some time between two reports.
            still_s = before.since_change_s + 1.0
            self._longest_s[key] = max(self._longest_s.get(key, 0.0), still_s)


def _mesh(text: str | None) -> Mesh | None:
    try:
        return Mesh.parse(text) if text else None
    except MeshError:
        return None


def _waiting(ranks: Sequence[RankProgress]) -> list[RankProgress]:
    """Return the ranks inside a collective; if there is none, those at the rendezvous."""
    inside = [rank for rank in ranks if rank.in_collective]
    return inside or [rank for rank in ranks if rank.phase == RENDEZVOUS]


def _key(rank: RankProgress) -> str:
    """Return the key of the limit that applies to a rank: its place in the life of a generation."""
    if rank.phase in (RENDEZVOUS, RESTORE) or not rank.steps_done:
        return START
    return "cycle" if rank.phase in CYCLE else rank.phase
