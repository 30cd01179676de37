"""An agent's life, played without an agent: for the tests of its decisions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from holdfast.events import (
    Event,
)
from holdfast.events.parts.job import JobSpec
from holdfast.fresh_ids import uuid7
from holdfast.orders.node import NodeOrder, Placement
from holdfast.settings.timeouts import Timeouts
from holdfast_agent.plan.actions import Action, Emit, Fork
from holdfast_agent.plan.inputs import Input, Observed, OrderSeen, RankEnded, RanksRun, StopDone, ZygoteFound
from holdfast_agent.plan.node_state import AgentState, RankStatus
from holdfast_agent.plan.planner import plan
from holdfast_agent.zygote.wire import LiveRank, RankExit

A = TypeVar("A", bound=Action)
E = TypeVar("E", bound=Event)

START = datetime(2026, 1, 1, tzinfo=UTC)
JOB = JobSpec(name="job-1", script="train.py", nproc_per_node=2, cwd="/", directory="/")
INCIDENT = "01a1f9f0-0000-7000-8000-000000000001"


def order(generation: int, *, epoch: int = 1, idle: bool = False, **fields: Any) -> NodeOrder:
    placement = None if idle else Placement(job=JOB, node_rank=0, master_addr="127.0.0.1", master_port=4000)
    return NodeOrder(node="n", epoch=epoch, generation=generation, job="job-1", placement=placement, **fields)


class Scene:
    """An agent's life, played."""

    def __init__(self) -> None:
        self.state = AgentState(node="n", instance=uuid7())
        self.now = START
        self.actions: list[Action] = []
        self.forked: list[tuple[int, int]] = []

    def see(self, kind: type[Input], **fields: Any) -> list[Action]:
        fields.setdefault("id", uuid7())
        outcome = plan(self.state, kind(**fields), self.now, Timeouts())
        self.state = outcome.state
        self.actions = list(outcome.actions)
        self.forked += [action.order.fence for action in outcome.actions if isinstance(action, Fork)]
        return self.actions

    def order(self, it: NodeOrder, **fields: Any) -> list[Action]:
        return self.see(OrderSeen, order=it, **{"signed_at": self.now, **fields})

    def zygote(self, *live: tuple[int, int], fence: tuple[int, int] = (1, 1), **fields: Any) -> list[Action]:
        ranks = tuple(LiveRank(rank=rank, pid=pid, fence=fence) for rank, pid in live)
        return self.see(ZygoteFound, **{"live": ranks, "ended": (), "order": b"", **fields})

    def run(self, generation: int = 1) -> list[Action]:
        return self.see(RanksRun, fence=(1, generation), pids={0: 100, 1: 101}, took_s=0.01)

    def end(self, rank: int, code: int | None = None, signal: int | None = None, generation: int = 1) -> list[Action]:
        exit_report = RankExit(
            exit_id=uuid7(),
            fence=(1, generation),
            rank=rank,
            local_rank=rank,
            pid=100 + rank,
            exit_code=code,
            signal=signal,
            exited_ns=0,
            log_tail="",
        )
        status = RankStatus(step=9, steps_done=10)
        return self.see(RankEnded, id=exit_report.exit_id, exit=exit_report, exited_at=self.now, status=status)

    def stopped(self, *ranks: int) -> list[Action]:
        return self.see(StopDone, number=self.state.stops, ranks=ranks, killed=0)

    def observe(self, *done: int, cut_off_s: float | None = None) -> list[Action]:
        statuses = {
            rank: RankStatus(step=49 + count, steps_done=count, first_step_at=START + timedelta(seconds=rank))
            for rank, count in enumerate(done)
        }
        return self.see(Observed, statuses=statuses, cut_off_s=cut_off_s)

    def said(self, kind: type[E]) -> list[E]:
        return [action.event for action in self.actions if isinstance(action, Emit) and isinstance(action.event, kind)]

    def did(self, kind: type[A]) -> list[A]:
        return [action for action in self.actions if isinstance(action, kind)]


def running(generation: int = 1, **fields: Any) -> Scene:
    scene = Scene()
    scene.zygote()
    scene.order(order(generation, **fields))
    scene.run(generation)
    return scene
