"""A simulated zygote and its ranks, which step together and die."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from holdfast.exit_codes import SUPERSEDED
from holdfast.orders.node import NodeOrder
from holdfast_agent.zygote.wire import Fence, RankExit
from tests.sim.training import Training

if TYPE_CHECKING:
    from tests.sim.nodes import SimNode

STEP_S = 0.5
LAST_STEP = 100
HANGING_CHANCE = 0.1
"""How often the checks of a node never end."""
SUPERSEDED_CHANCE = 0.5
"""How often ranks find, in the time of a step, that a newer generation has their checkpoints."""


class SimRank(msgspec.Struct):
    """A rank's process and its ledger."""

    fence: Fence
    rank: int
    pid: int
    step: int
    steps_done: int = 0
    is_check: bool = False


class Zygote:
    """Holds a node's ranks; outlives its agent, not its node."""

    def __init__(self, node: SimNode) -> None:
        self.node = node
        self.ranks: dict[int, SimRank] = {}
        self.exits: dict[str, RankExit] = {}
        self.order = b""
        self.training: Training

    def fork(self, order: NodeOrder) -> dict[int, int]:
        assert order.placement is not None
        assert not self.ranks, f"{self.node.name} started ranks of {order.fence} beside others"
        self.order = order.encode()
        if order.placement.purpose == "checks":
            return self._fork_checks(order)
        self.training = self.node.trainings[order.placement.job.name]
        for rank in order.placement.ranks:
            world_size = order.placement.job.nnodes * order.placement.job.nproc_per_node
            self.training.start(order.generation, rank, self.node.name, world_size)
            self.node.pids += 1
            step = self.training.restored(order.generation, order.placement.restore_at_most)
            self.ranks[rank] = SimRank(order.fence, rank, self.node.pids, step)
        self.node.started(order.fence)
        self.node.world.after(STEP_S, lambda: self._train(order.fence))
        return {rank: it.pid for rank, it in self.ranks.items()}

    def _fork_checks(self, order: NodeOrder) -> dict[int, int]:
        """Ranks that test the node: they tell what they find, and end by themselves, or never."""
        assert order.placement is not None
        for rank in order.placement.ranks:
            self.node.pids += 1
            self.ranks[rank] = SimRank(order.fence, rank, self.node.pids, -1, is_check=True)
        self.node.started(order.fence)
        if self.node.world.random.random() >= HANGING_CHANCE:
            self.node.world.after(self.node.world.random.uniform(1.0, 6.0), lambda: self._checked(order))
        return {rank: it.pid for rank, it in self.ranks.items()}

    def _checked(self, order: NodeOrder) -> None:
        mine = [rank for rank in self.ranks.values() if rank.fence == order.fence]
        if not mine or self.node.zygote is not self:
            return
        self.node.tell_result(order)
        for rank in mine:
            self.node.rank_ended(self.exit(rank.rank))

    def end(self, rank: int) -> SimRank:
        ended = self.ranks.pop(rank)
        if not ended.is_check:
            self.training.end(ended.fence[1], rank)
        return ended

    def exit(self, rank: int, *, signal: int | None = None, code: int = 0, log: str = "") -> RankExit:
        """A rank ends by itself; the report is kept until the agent acknowledges it."""
        ended = self.ranks.pop(rank)
        if (signal is not None or code) and not ended.is_check:
            # Ranks that end well end together; the others still count as there for those that end later.
            self.training.end(ended.fence[1], rank)
        report = RankExit(
            exit_id=self.node.fresh_id(),
            fence=ended.fence,
            rank=rank,
            local_rank=0,
            pid=ended.pid,
            exit_code=None if signal else code,
            signal=signal,
            exited_ns=int(self.node.world.now().timestamp() * 1e9),
            log_tail=log,
        )
        self.exits[report.exit_id] = report
        self.node.ledgers[ended.fence, rank] = (ended.step, ended.steps_done)
        return report

    def _train(self, fence: Fence) -> None:
        mine = [rank for rank in self.ranks.values() if rank.fence == fence]
        if not mine or self.node.zygote is not self:
            return
        if fence[1] < max(self.training.alive) and self.node.world.random.random() < SUPERSEDED_CHANCE:
            for rank in mine:
                # They have trained on alone, further than the job ever gets.
                rank.step += LAST_STEP
                self.node.rank_ended(self.exit(rank.rank, code=SUPERSEDED))
            return
        if self.training.is_complete(fence[1]):
            self.training.stepped.add(fence[1])
            for rank in mine:
                rank.step += 1
                rank.steps_done += 1
            self.training.stepped_to(fence[1], mine[0].step)
            self.training.saved_step = max(self.training.saved_step, mine[0].step - 2)
            if mine[0].steps_done == 1:
                # For the first step agents look all the time, for later ones with their heartbeats.
                self.node.observe()
            if mine[0].step >= LAST_STEP:
                for rank in mine:
                    self.node.rank_ended(self.exit(rank.rank))
                return
        self.node.world.after(STEP_S, lambda: self._train(fence))
