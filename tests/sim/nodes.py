"""Simulated nodes: the production decisions of the agent over a simulated zygote and its ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import msgspec

from holdfast.engines.checks.suites import SLOW
from holdfast.events import DiagnosticResult, Event, Inspection, NodeInspected, NodeRegistered
from holdfast.events.parts.job import CheckResult, NodeFacts
from holdfast.orders.base import UnreadableOrder
from holdfast.orders.node import NodeOrder
from holdfast.settings.timeouts import Timeouts
from holdfast_agent.plan.actions import Acknowledge, Action, Emit, EndZygote, Fork, Stop
from holdfast_agent.plan.inputs import (
    Input,
    Observed,
    OrderSeen,
    RankEnded,
    RanksRun,
    StopDone,
    ZygoteFound,
    ZygoteLost,
)
from holdfast_agent.plan.node_state import AgentState, Durable, RankStatus
from holdfast_agent.plan.planner import plan
from holdfast_agent.zygote.wire import Fence, LiveRank, RankExit
from tests.sim.network import World
from tests.sim.training import Training
from tests.sim.zygote import STEP_S, Zygote

HEARTBEAT_S = 1.0
SLOW_RATE = 10.0
"""GFLOP/s of a machine that is slow; the others have three times as much."""
AGAIN_CHANCE = 0.05
"""How often, in half a second, a node is told again what it has been told."""
FACTS = NodeFacts(
    address="10.0.0.1", hostname="h", boot_id="b", store_ports=(1, 2, 3), cpus=1, memory_bytes=1, version="sim"
)


_read = lru_cache(NodeOrder.decode)
"""Orders are read again and again, and never change."""


MACHINE_ACCUSED = """Traceback (most recent call last):
  File "train.py", line 9, in <module>
    loss.backward()
RuntimeError: CUDA error: uncorrectable ECC error encountered
"""
PARTNER_LOST = """Traceback (most recent call last):
  File "train.py", line 9, in <module>
    loss.backward()
RuntimeError: [pair.cc:553] Connection closed by peer [10.0.0.98]:5016
"""
SERVICE_MISSED = """Traceback (most recent call last):
  File "train.py", line 7, in <module>
    fetch(url)
urllib.error.HTTPError: HTTP Error 503: Service Unavailable
"""


class SimNode:
    """One node. Its disk (`disk`, `spool`) survives everything, its zygote the agent's death, its agent nothing."""

    def __init__(
        self,
        name: str,
        world: World,
        trainings: dict[str, Training],
        members: Mapping[tuple[str, int], tuple[str, ...]],
        timeouts: Timeouts,
        say: Callable[[Event], None],
        beat: Callable[[str], None],
    ) -> None:
        self.name = name
        self.world = world
        self.trainings = trainings
        self.members = members
        self.is_slow = False
        self.timeouts = timeouts
        self._say = say
        self._beat = beat
        self.connected = True
        self.is_unfit = False
        self.pids = 0
        self.ledgers: dict[tuple[Fence, int], tuple[int, int]] = {}
        self.disk = Durable()
        self._written: list[tuple[float, Durable]] = []
        self.spool: list[Event] = []
        self.fences: list[Fence] = []
        self.zygote: Zygote | None = None
        self.agent: AgentState | None = None
        self._life = 0
        self._obeyed: tuple[int, bytes] | None = None
        self._socket_at = 0.0
        self.boot()

    def fresh_id(self) -> str:
        """A UUIDv7 of simulated time and chance; a history needs thousands, so they are made of text."""
        ms = int(self.world.now().timestamp() * 1000)
        chance = f"{self.world.random.getrandbits(72):018x}"
        return f"{ms >> 16:08x}-{ms & 0xFFFF:04x}-7{chance[:3]}-8{chance[3:6]}-{chance[6:]}"

    # --- the agent's life -------------------------------------------------------------------------

    def boot(self) -> None:
        """The agent starts: it remembers its disk, finds or starts the zygote, and registers."""
        self._life += 1
        life = self._life
        durable = msgspec.json.decode(msgspec.json.encode(self.disk), type=Durable)
        self.agent = AgentState(node=self.name, instance=self.fresh_id(), durable=durable)
        self.zygote = self.zygote or Zygote(self)
        self._later(self._attach)
        self.world.after(0.1, lambda: self._heartbeat(life))

    @property
    def life(self) -> int:
        """Changes when the agent starts or is gone."""
        return self._life

    def _attach(self) -> None:
        zygote, agent = self.zygote, self.agent
        assert zygote is not None and agent is not None
        live = tuple(LiveRank(rank=it.rank, pid=it.pid, fence=it.fence) for it in zygote.ranks.values())
        ended = tuple(self._ended(report) for report in zygote.exits.values())
        self.learn(
            ZygoteFound(id=self.fresh_id(), live=live, ended=ended, order=zygote.order, statuses=self._statuses())
        )
        checks = (CheckResult(name="all", status="ok"),)
        for kind, fields in ((NodeRegistered, {}), (NodeInspected, {"checks": checks})):
            self._speak(
                kind(
                    id=self.fresh_id(),
                    at=self.world.now(),
                    source=f"agent/{self.name}",
                    node=self.name,
                    instance=agent.instance,
                    facts=FACTS,
                    **fields,
                )
            )

    def _later(self, action: Callable[[], Any]) -> None:
        """Soon, in the order of asking (agent and zygote speak over one socket), unless this life is over by then."""
        life = self._life
        self._socket_at = max(self._socket_at, self.world.seconds + 0.002 + 0.02 * self.world.random.random())

        def act() -> None:
            if self._life == life and self.agent is not None:
                action()

        self.world.after(self._socket_at - self.world.seconds, act)

    def _heartbeat(self, life: int) -> None:
        if self._life != life or self.agent is None:
            return
        if self.connected:
            self._beat(self.name)
            self._flush()
        self.observe()
        self.world.after(HEARTBEAT_S, lambda: self._heartbeat(life))

    def _speak(self, event: Event) -> None:
        self.spool.append(event)
        self._flush()

    def _flush(self) -> None:
        if self.connected:
            said, self.spool = self.spool, []
            for event in said:
                self._say(event)

    # --- decisions --------------------------------------------------------------------------------

    def learn(self, seen: Input) -> None:
        """As the agent's shell does: decide, make it durable, do it."""
        if self.agent is None:
            return
        outcome = plan(self.agent, seen, self.world.now(), self.timeouts)
        self.agent = outcome.state
        if outcome.state.durable is not self.disk:
            self.disk = outcome.state.durable
            self._written.append((self.world.seconds, self.disk))
        for action in outcome.actions:
            if isinstance(action, Emit):
                self._speak(action.event)
        for action in outcome.actions:
            self._do(action)

    def _do(self, action: Action) -> None:
        zygote = self.zygote
        match action:
            case Fork():
                self._later(lambda: self._fork(action.order))
            case Stop():
                self._later(lambda: self._stop(action.number))
            case Acknowledge() if zygote is not None:
                zygote.exits.pop(action.exit_id, None)
            case EndZygote():
                self.zygote = None
            case _:
                pass

    def _fork(self, order: NodeOrder) -> None:
        if self.zygote is not None:
            pids = self.zygote.fork(order)
            self._later(lambda: self.learn(RanksRun(id=self.fresh_id(), fence=order.fence, pids=pids, took_s=0.01)))

    def _stop(self, number: int) -> None:
        if self.zygote is None:
            return
        ranks = tuple(self.zygote.ranks)
        for rank in ranks:
            self.zygote.end(rank)
        self._later(lambda: self.learn(StopDone(id=self.fresh_id(), number=number, ranks=ranks, killed=0)))

    def obey(self, body: bytes) -> None:
        """The node's key has (or still has) this value."""
        try:
            order = _read(body)
        except UnreadableOrder:
            return
        if self.agent is not None and self.agent.zygote_ready:
            self._obeyed = (self._life, body)
            self.learn(OrderSeen(id=self.fresh_id(), order=order, signed_at=self.world.now()))

    def remember(self, body: bytes) -> None:
        """The node's key still has this value: what this agent has missed, it learns now, and now and then again."""
        if self._obeyed != (self._life, body) or self.world.random.random() < AGAIN_CHANCE:
            self.obey(body)

    def rank_ended(self, report: RankExit) -> None:
        if self.agent is not None:
            self._later(lambda: self.learn(self._ended(report)))

    def observe(self) -> None:
        """Ledgers are read while there is a crew."""
        if self.agent is not None and (crew := self.agent.durable.crew) is not None and crew.pids:
            self.learn(Observed(id=self.fresh_id(), statuses=self._statuses()))

    def _ended(self, report: RankExit) -> RankEnded:
        step, steps_done = self.ledgers.get((report.fence, report.rank), (-1, 0))
        status = RankStatus(step=step, steps_done=steps_done)
        return RankEnded(id=report.exit_id, exit=report, exited_at=self.world.now(), status=status)

    def _statuses(self) -> dict[int, RankStatus]:
        ranks = self.zygote.ranks.values() if self.zygote else ()
        return {it.rank: RankStatus(step=it.step, steps_done=it.steps_done) for it in ranks}

    def started(self, fence: Fence) -> None:
        """Ranks of this order were started."""
        assert not self.fences or fence > self.fences[-1], f"{self.name} went back from {self.fences[-1]} to {fence}"
        self.fences.append(fence)

    def tell_result(self, order: NodeOrder) -> None:
        """What a stop-time test finds out here, and that it was the last."""
        common = {"job": order.job, "generation": order.generation, "run": "sim"}
        found = {"status": "failed", "detail": "differs"} if self.is_unfit else {"status": "passed"}
        self._tell(DiagnosticResult, test="gemm", **common, **found)
        assert order.placement is not None
        if SLOW in order.placement.job.args:
            rate = SLOW_RATE if self.is_slow else 3 * SLOW_RATE
            self._tell(
                DiagnosticResult, test="speed", status="passed", value=rate, unit="GFLOP/s", hardware="sim", **common
            )
        for peer in self.members.get((order.job or "", order.generation), ()):
            if peer != self.name:
                self._tell(DiagnosticResult, test="all_gather", status="passed", peers=(peer,), value=1.0, **common)
        self._tell(DiagnosticResult, test="end", status="passed", **common)

    def _tell(self, kind: type[Event], **fields: Any) -> None:
        at = self.world.now()
        self._speak(kind(id=self.fresh_id(), at=at, source=f"agent/{self.name}", node=self.name, **fields))

    # --- faults -----------------------------------------------------------------------------------

    def kill_rank(self) -> None:
        if self.zygote is not None and self.zygote.ranks:
            self.rank_ended(self.zygote.exit(self.world.random.choice(sorted(self.zygote.ranks)), signal=9))

    def miss_a_service(self) -> None:
        """A service elsewhere does not answer one of its ranks; tests of a node need none."""
        self._fail_a_rank(SERVICE_MISSED)

    def accuse_machine(self, others: Sequence[SimNode]) -> None:
        """One of its ranks ends and names the machine. Ranks of other nodes lose their partner, some a step later."""
        if (fence := self._fail_a_rank(MACHINE_ACCUSED)) is None or self.zygote is None:
            return
        for other in others:
            partner = partial(other.lose_partner, self.zygote.training, fence[1])
            self.world.after(self.world.random.uniform(0.0, 2 * STEP_S), partner)

    def lose_partner(self, training: Training, generation: int) -> None:
        ranks = self.zygote.ranks.values() if self.zygote else ()
        trains = any(it.fence[1] == generation and not it.is_check for it in ranks)
        if self.zygote and trains and self.zygote.training is training:
            self._fail_a_rank(PARTNER_LOST)

    def _fail_a_rank(self, log: str) -> Fence | None:
        """End a rank that trains, which prints this; return what it ran for."""
        trains = [rank for rank, it in self.zygote.ranks.items() if not it.is_check] if self.zygote else []
        if self.zygote is None or not trains:
            return None
        report = self.zygote.exit(self.world.random.choice(sorted(trains)), code=1, log=log)
        self.rank_ended(report)
        return report.fence

    def break_down(self) -> None:
        """From now on its ranks crash again and again, and its tests fail."""
        self.is_unfit = True
        self._crash_again()

    def _crash_again(self) -> None:
        if self.is_unfit:
            self.kill_rank()
            self.world.after(self.world.random.uniform(1.0, 4.0), self._crash_again)

    def raise_alert(self, confidence: str) -> None:
        """A check beside training finds something."""
        self._tell(
            Inspection,
            check="gpu",
            state="alert",
            confidence=confidence,
            symptom="gpu_unavailable" if confidence == "evict" else "infiniband_error",
            detail="found",
        )

    def restart_agent(self) -> None:
        """The agent is killed, whatever it was about to do, and started again; zygote and ranks live on."""
        if self.agent is not None:
            self.boot()

    def kill_zygote(self) -> None:
        """The zygote is killed, and its ranks with it; the agent starts another."""
        if self.zygote is None:
            return
        self._lose_zygote()
        if self.agent is not None:
            self.learn(ZygoteLost(id=self.fresh_id()))
            self.zygote = Zygote(self)
            self._later(self._attach)

    def power_off(self, loses_s: float = 0.0) -> None:
        """The node is gone with everything on it but its disk, which may lose what was written in these last seconds:
        the agent does not wait until its commits are on the disk.
        """
        if loses_s:
            written = [(at, disk) for at, disk in self._written if at < self.world.seconds - loses_s]
            self._written, self.disk = written, written[-1][1] if written else Durable()
            # It does not know what it ran, nor does anything of it run: it may do that once more.
            forgotten = [fence for fence in self.fences if fence > self.disk.settled]
            self.fences = self.fences[: len(self.fences) - len(forgotten)]
            for training in self.trainings.values():
                training.forget(self.name, {generation for _, generation in forgotten})
        self.agent = None
        self._life += 1
        self._lose_zygote()

    def power_on(self) -> None:
        if self.agent is None:
            self.boot()

    def _lose_zygote(self) -> None:
        if self.zygote is not None:
            for rank in list(self.zygote.ranks):
                self.zygote.end(rank)
        self.zygote = None
