"""A simulated machine: the production decisions of its agent, over ranks that are started, end and report.

It is asked when something happens, not once a second: agents report the first step, the step after a failure and the
last step before one, which is what decisions use.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from holdfast.events import (
    CheckpointRestored,
    DiagnosticResult,
    Event,
    Inspection,
    NodeInspected,
    NodeRegistered,
    StepsKept,
)
from holdfast.events.parts.job import CheckResult, NodeFacts
from holdfast.ids import uuid7_of
from holdfast.orders.node import NodeOrder
from holdfast.settings.timeouts import Timeouts
from holdfast_agent.plan.actions import Action, Emit, EndZygote, FetchCode, Fork, StartWarmUp, Stop
from holdfast_agent.plan.inputs import (
    CodeReady,
    Input,
    Observed,
    OrderSeen,
    RankEnded,
    RanksRun,
    ShutdownRequested,
    StopDone,
    WarmUpReported,
    ZygoteFound,
)
from holdfast_agent.plan.node_state import AgentState, Durable, RankStatus
from holdfast_agent.plan.planner import plan
from holdfast_agent.plan.reconcile import code_of
from holdfast_agent.zygote.wire import Fence, RankExit
from holdfast_proving.scenario.last_words import LastWords
from holdfast_proving.world.agenda import Agenda, moment_of
from holdfast_proving.world.node_tests import NodeTests
from holdfast_proving.world.replays import Replays
from holdfast_proving.world.training import Run, Training
from holdfast_proving.world.warm_ups import WarmUps

BOOT_S = 2.0
CODE_S = 1.0
"""Time in which an agent fetches a version of a job's code."""


class Machine:
    def __init__(
        self,
        name: str,
        rack: str,
        agenda: Agenda,
        noise: Random,
        timeouts: Timeouts,
        trainings: dict[str, Training],
        tests: NodeTests,
        replays: Replays,
        warm_ups: WarmUps,
        publish: Callable[[Event], None],
        host: str = "",
    ) -> None:
        """`host`: the one whose processors it shares with others."""
        self.name = name
        self.rack = rack
        self.host = host or name
        self.agenda = agenda
        self.noise = noise
        self.timeouts = timeouts
        self.trainings = trainings
        """The training of each job, by the job's name."""
        self.tests = tests
        self.replays = replays
        self.warm_ups = warm_ups
        self.publish = publish
        self.unfit: dict[int, str] = {}
        """Alerts that prove a fault, by fault: an agent of such a machine is no standby."""
        self._facts = NodeFacts(
            address="10.0.0.1",
            hostname=name,
            boot_id=self.host,
            store_ports=(1, 2, 3),
            vault_port=4,
            cpus=1,
            memory_bytes=1,
            version="proving",
            rack=rack,
        )
        self.is_on = False
        self.heartbeat_s = 0.0
        self.agent: AgentState | None = None
        self._disk = Durable()
        self.life = 0
        """Counts the times that it was switched on and off."""
        self._key: NodeOrder | None = None
        """The newest order for this machine on the bus."""
        self._order: NodeOrder | None = None
        """The order whose ranks run."""
        self._ranks: dict[int, int] = {}
        self._pids = 0
        self._code: frozenset[str] = frozenset()
        """The versions of jobs' code on its disk."""
        self.on_write: Callable[[Durable], None] = lambda disk: None
        self.disk_after_loss: Callable[[Durable], Durable] = lambda disk: disk
        """What is left of the disk when the power is gone."""
        self.switch_on()

    def fresh_id(self) -> str:
        ms = int(self.agenda.now().timestamp() * 1000)
        return uuid7_of(ms, self.noise.getrandbits(80).to_bytes(10, "big"))

    # --- power ------------------------------------------------------------------------------------

    def switch_on(self) -> None:
        """Start the agent: it remembers its disk, finds no ranks, and registers."""
        if self.is_on:
            return
        self.is_on = True
        self.life += 1
        self.agent = AgentState(node=self.name, instance=self.fresh_id(), durable=self._disk)
        self.agenda.after(self.noise.uniform(0.0, BOOT_S), self._of_this_life(self._register))

    def switch_off(self) -> None:
        """Lose everything but the disk."""
        if not self.is_on:
            return
        # What it has sent by now is elsewhere.
        self._lose_ranks()
        self._disk = self.disk_after_loss(self._disk)
        self.is_on, self.heartbeat_s, self.agent = False, self.agenda.seconds, None
        self.life += 1

    def shut_down(self) -> None:
        """Have people shut the agent down, which stops the ranks and reports it."""
        self.learn(ShutdownRequested(id=self.fresh_id()))

    def _of_this_life(self, action: Callable[[], Any]) -> Callable[[], None]:
        life = self.life

        def act() -> None:
            if self.life == life:
                action()

        return act

    def _register(self) -> None:
        self.learn(ZygoteFound(id=self.fresh_id(), live=(), ended=(), order=b""))
        if self._code:
            self.learn(CodeReady(id=self.fresh_id(), code=self._code))
        assert self.agent is not None
        self.tell(NodeRegistered, instance=self.agent.instance, facts=self._facts)
        self.report_fitness()
        if self._key is not None:
            self.obey(self._key)

    def report_fitness(self) -> None:
        """Report the self-check: failed while an alert proves a fault."""
        if self.agent is None:
            return
        failed = tuple(CheckResult(name=name, status="failed", detail=name) for name in self.unfit.values())
        checks = failed or (CheckResult(name="all", status="ok"),)
        self.tell(NodeInspected, instance=self.agent.instance, checks=checks, facts=self._facts)

    # --- the agent --------------------------------------------------------------------------------

    def obey(self, order: NodeOrder) -> None:
        """Note the order under the machine's key; the agent reads it now, or when it starts."""
        self._key = order
        if self.agent is not None and self.agent.zygote_ready:
            self.learn(OrderSeen(id=self.fresh_id(), order=order, signed_at=self.agenda.now()))

    def learn(self, seen: Input) -> None:
        """Decide, remember, act: as the agent's shell does."""
        if self.agent is None:
            return
        outcome = plan(self.agent, seen, self.agenda.now(), self.timeouts)
        self.agent = outcome.state
        self._disk = outcome.state.durable
        self.on_write(self._disk)
        for action in outcome.actions:
            self._act(action)

    def _act(self, action: Action) -> None:
        match action:
            case Emit():
                self.publish(action.event)
            case Fork():
                self.agenda.after(self._fork_s(action.order), self._of_this_life(lambda: self._fork(action.order)))
            case Stop():
                stop_s = self.training.plan.stop_s if self.training else 1.0
                self._lose_ranks()
                self.agenda.after(stop_s, self._of_this_life(lambda: self._stopped(action.number)))
            case StartWarmUp():
                after_s = self.warm_ups.takes_s(self.name, action.order)
                self.agenda.after(after_s, self._of_this_life(lambda: self._warmed_up(action.order)))
            case FetchCode():
                code = code_of(action.order) or ""
                self.agenda.after(CODE_S, self._of_this_life(lambda: self._has_code(code)))
            case EndZygote():
                self.switch_off()
            case _:
                pass

    def _warmed_up(self, order: NodeOrder) -> None:
        if results := self.warm_ups.results(self.name, order):
            self.learn(WarmUpReported(id=self.fresh_id(), fence=order.fence, results=results))

    def _has_code(self, code: str) -> None:
        self._code |= {code}
        self.learn(CodeReady(id=self.fresh_id(), code=self._code))

    def _fork_s(self, order: NodeOrder) -> float:
        training = self.trainings.get(order.job or "")
        return (training.plan.fork_s if training else 1.0) * self.noise.uniform(0.8, 1.2)

    def _fork(self, order: NodeOrder) -> None:
        if self.agent is None or self.agent.crew is None or self.agent.crew.order.fence != order.fence:
            return
        if self.agent.crew.forked or self.agent.stop is not None:
            return
        placement = order.placement
        assert placement is not None
        self._order = order
        self._pids += len(placement.ranks)
        self._ranks = {rank: self._pids + number for number, rank in enumerate(placement.ranks)}
        self.learn(RanksRun(id=self.fresh_id(), fence=order.fence, pids=self._ranks, took_s=0.1))
        if placement.purpose == "train":
            training = self.trainings[order.job or ""]
            at_most, code = placement.restore_at_most, placement.code_version
            training.joined(self._run_of(order), self.name, placement.node_rank, at_most, code)
        elif placement.purpose == "replay":
            self.replays.start(self, order)
        else:
            self.tests.start(self, order)

    def _stopped(self, number: int) -> None:
        self.learn(StopDone(id=self.fresh_id(), number=number, ranks=(), killed=0))

    def _lose_ranks(self) -> None:
        if self._order is not None and (training := self.training) is not None:
            training.left(self._run_of(self._order), self.name)
        self._order, self._ranks = None, {}

    @staticmethod
    def _run_of(order: NodeOrder) -> tuple[str, int]:
        return order.job or "", order.generation

    @property
    def training(self) -> Training | None:
        """The training whose ranks run here; of tests: none."""
        if self._order is None or self._order.placement is None or self._order.placement.purpose != "train":
            return None
        return self.trainings.get(self._order.job or "")

    def runs(self, fence: Fence) -> bool:
        """Return True if ranks of this order run here."""
        return self._order is not None and self._order.fence == fence

    # --- what it reports --------------------------------------------------------------------------

    def tell(self, kind: type[Event], **fields: Any) -> None:
        at = self.agenda.now()
        self.publish(kind(id=self.fresh_id(), at=at, source=f"agent/{self.name}", node=self.name, **fields))

    def observe(self) -> None:
        """Read the ledgers of the ranks, as the agent does every second."""
        if statuses := self._statuses():
            self.learn(Observed(id=self.fresh_id(), statuses=statuses))

    def _statuses(self) -> dict[int, RankStatus]:
        training = self.training
        run = training.run if training else None
        if training is None or run is None or run.began_s is None or self._order is None:
            return {}
        step = training.step(run)
        last = moment_of(training.last_sign_s(run))
        status = RankStatus(
            step=step,
            steps_done=step - run.from_step,
            phase="train",
            first_step_at=self.agenda.now(),
            changed_at=last,
            stepped_at=last,
        )
        return dict.fromkeys(self._ranks, status)

    def report_restore(self, run: Run, tier: str, newest: int, keeps: str) -> None:
        """Report the step that the run goes on from, as the agent of rank 0 does."""
        common = {"job": run.job, "generation": run.generation}
        self.tell(CheckpointRestored, step=run.from_step, tier=tier, newest_step=newest, **common)
        if keeps == "memory":
            self.tell(StepsKept, step=run.from_step + 1, **common)

    def end_rank(self, words: LastWords, chance: Random) -> None:
        """End one rank, which reports like this."""
        if self._ranks and self._order is not None:
            self._end(chance.choice(sorted(self._ranks)), words)

    def finish(self, fence: Fence) -> None:
        """End all ranks of this order with exit code 0."""
        if self.runs(fence):
            for rank in sorted(self._ranks):
                self._end(rank, LastWords(exit_code=0))

    def finish_training(self, run: Run) -> None:
        """End all ranks of this run with exit code 0."""
        if self._order is not None and self._run_of(self._order) == (run.job, run.generation):
            self.finish(self._order.fence)

    def _end(self, rank: int, words: LastWords) -> None:
        order, status = self._order, self._statuses().get(rank, RankStatus())
        assert order is not None and order.placement is not None
        pid = self._ranks.pop(rank)
        report = RankExit(
            exit_id=self.fresh_id(),
            fence=order.fence,
            rank=rank,
            local_rank=rank - order.placement.ranks.start,
            pid=pid,
            exit_code=words.exit_code,
            signal=words.signal,
            exited_ns=int(self.agenda.now().timestamp() * 1e9),
            log_tail=words.log_tail,
            exception=words.exception,
        )
        if (training := self.training) is not None:
            training.left(self._run_of(order), self.name)
        self.learn(RankEnded(id=report.exit_id, exit=report, exited_at=self.agenda.now(), status=status))

    def alert(self, **fields: Any) -> None:
        """Report what an inspection found, or finds no longer."""
        if self.is_on:
            crew = self.agent.crew if self.agent is not None else None
            of_job = {"job": crew.order.job, "generation": crew.order.generation} if crew is not None else {}
            self.tell(Inspection, boot_id=self.name, **of_job, **fields)

    def result(self, order: NodeOrder, test: str, status: str, **fields: Any) -> None:
        """Report the result of one stop-time test."""
        run = f"{order.job}/{order.generation}"
        self.tell(
            DiagnosticResult,
            job=order.job,
            generation=order.generation,
            run=run,
            test=test,
            status=status,
            boot_id=self.name,
            **fields,
        )
