"""A simulated cluster: the world of a scenario, and the production services that decide in it."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterator, MutableMapping
from datetime import datetime, timedelta
from functools import partial
from random import Random
from typing import NamedTuple

from holdfast.daemon.liveness import TICK_S
from holdfast.events import ChecksStarted, CopiesMeasured, Event, GenerationStarted, ReplayStarted
from holdfast.events.parts.job import JobSpec
from holdfast.ids import named_id
from holdfast.orders.backup import BackupOrder
from holdfast.orders.node import NodeOrder
from holdfast.orders.signatures import OrderSigner
from holdfast.requests import CodeOffer, ReleaseNode, RollbackJob, StopJob, SubmitJob, UpdateJob
from holdfast_analyzer.register import engines_of
from holdfast_analyzer.service import Analyzer
from holdfast_ckpt.service import Coordinator
from holdfast_controller.plan.draft import Rules
from holdfast_controller.service import Controller
from holdfast_proving.evidence.evidence import FOR_THE_ANALYZER, Evidence
from holdfast_proving.evidence.telemetry import model_request
from holdfast_proving.inside.bus import ProvingBus
from holdfast_proving.inside.chaotic_bus import ChaoticBus
from holdfast_proving.inside.chaotic_service import ChaoticService, disturb
from holdfast_proving.inside.due import due_of_jobs, due_of_nodes
from holdfast_proving.inside.ettr_curve import EttrCurve
from holdfast_proving.inside.service import Service
from holdfast_proving.policies.policy import TODAY, Insight, Policy
from holdfast_proving.scenario.forms import ASLEEP
from holdfast_proving.scenario.scenario import JobPlan, Scenario, Update
from holdfast_proving.scenario.versions import CODE_ROOT, SCRIPT, digest, manifests_of, versions_of
from holdfast_proving.truth.faults import Fault
from holdfast_proving.truth.generator import DAY_S, HOUR_S, racks_of, true_faults
from holdfast_proving.truth.ledger import Ledger
from holdfast_proving.world.agenda import EPOCH, Agenda
from holdfast_proving.world.analysis import Analysis
from holdfast_proving.world.effects import Effects
from holdfast_proving.world.findings import Findings
from holdfast_proving.world.lives import Lives
from holdfast_proving.world.machine import Machine
from holdfast_proving.world.node_tests import NodeTests
from holdfast_proving.world.replays import Groups, Replays
from holdfast_proving.world.training import Training
from holdfast_proving.world.warm_ups import WarmUps
from holdfast_standby.service import Standby

PARTS = 500
EVENTS_MAX = 5_000_000
NOT_RECORDED = (*FOR_THE_ANALYZER, CopiesMeasured)
HEARTBEAT_S = 1.0
HEARD_AGAIN_WITHIN_S = 4.0
"""Time in which the heartbeats of machines return, one machine after another, once messages arrive again."""
AFTER_SILENCE_S = 20.0
READY_S = 30.0
"""Machines register before jobs are submitted."""


class SimulatedHeartbeats(MutableMapping[str, datetime]):
    """The last heartbeat of each machine: now, while it is on."""

    def __init__(self, machines: dict[str, Machine], agenda: Agenda) -> None:
        self._machines = machines
        self._agenda = agenda
        self._forgotten: set[str] = set()
        self._held_s: dict[str, tuple[float, float]] = {}
        """For each machine when its last heartbeat arrived before a silence, and its first one after it."""

    def hold(self, since_s: float, until_s: float) -> None:
        """Let no heartbeat arrive in this time. The last ones came within an interval, the next come one by one."""
        for number, name in enumerate(self._machines):
            share = number / len(self._machines)
            self._held_s[name] = since_s - share * HEARTBEAT_S, until_s + share * HEARD_AGAIN_WITHIN_S

    def __getitem__(self, name: str) -> datetime:
        machine = self._machines[name]
        last_s, until_s = self._held_s.get(name, (0.0, 0.0))
        if machine.is_on and last_s <= self._agenda.seconds < until_s:
            return EPOCH + timedelta(seconds=last_s)
        if machine.is_on:
            return self._agenda.now()
        return EPOCH + timedelta(seconds=machine.heartbeat_s)

    def __setitem__(self, name: str, at: datetime) -> None:
        raise NotImplementedError("heartbeats follow from the machines; they are not noted")

    def __delitem__(self, name: str) -> None:
        self._forgotten.add(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._machines)

    def __len__(self) -> int:
        return len(self._machines)


class Asked(NamedTuple):
    """One request of an operator about a job's code."""

    at_s: float
    job: str
    update: Update
    is_accepted: bool

    @property
    def due_s(self) -> float:
        """When the job is restarted for it, if nothing else has restarted it before."""
        is_lazy = self.update.version and not self.update.is_urgent
        return self.at_s + (self.update.within_h * HOUR_S if is_lazy else 0.0)


class Cluster:
    """One simulation: a scenario, a seed, a policy."""

    def __init__(self, scenario: Scenario, seed: int, policy: Policy = TODAY, every_tick: bool = False) -> None:
        self.scenario = scenario = policy.conditions(scenario)
        self.seed = seed
        self.policy = policy
        self.is_cut_short = False
        self.agenda = Agenda()
        self.ledger = Ledger()
        self.log: list[tuple[float, Event]] = []
        noise = Random(f"{seed}/noise")
        plan = scenario.chaos
        self.bus = ChaoticBus(self.agenda, noise, plan, seed) if plan else ProvingBus(self.agenda, noise)
        self._by_job: dict[str, Training] = {}
        self._members: dict[tuple[str, int], tuple[str, ...]] = {}
        self._groups: dict[tuple[str, int], Groups] = {}
        self.machines: dict[str, Machine] = {}
        self.trainings = [
            Training(plan, self.agenda, self.machines, versions_of(scenario, plan)) for plan in scenario.jobs
        ]
        self.asked: list[Asked] = []
        """What operators wanted of jobs' code."""
        settings = policy.settings
        tests = NodeTests(self.agenda, self.ledger, self._members)
        replays = Replays(
            self.agenda, self.ledger, self._by_job, self._groups, lambda training: self.effects.fails_at(training)
        )
        warm_ups = WarmUps(self.agenda, self.ledger, self._members)
        racks = racks_of(scenario)
        for rack, names in racks.racks.items():
            for name in names:
                self.machines[name] = Machine(
                    name,
                    rack,
                    self.agenda,
                    noise,
                    settings.timeouts,
                    self._by_job,
                    tests,
                    replays,
                    warm_ups,
                    self.bus.tell,
                    racks.hosts.get(name, ""),
                )
        analysis = self._analysis(every_tick)
        self.effects = Effects(scenario, self.agenda, self.ledger, self.machines, self.trainings, analysis, noise)
        self.controller, self.standby, self.coordinator = self._services(every_tick)
        if plan and isinstance(self.bus, ChaoticBus):
            disturb(self.bus, plan, (self.controller, self.standby, self.coordinator), self.machines.values())
        self.bus.obey = self._obey
        self.bus.back_up = self._back_up
        self.bus.watchers.append(self._note)
        self.lives = Lives(self.agenda, self.trainings, self.machines, analysis, self.effects, self._submit_later)
        self.bus.watchers.append(self.lives.watch)
        self.effects.on_power.append(self._look_for_nodes)
        self.effects.on_silence.append(self._hold_messages)
        self.agenda.after(READY_S, self._submit_all)
        self.curve = EttrCurve(self.agenda, self.trainings, READY_S)
        self.effects.expect(true_faults(scenario, seed))

    def _analysis(self, every_tick: bool) -> Analysis:
        """Return the model of the analyzer, or start the production one and return what feeds it."""
        if self.scenario.analyzer == "model":
            return Findings(self.agenda, self.bus.tell)
        settings, noise = self.policy.settings, Random(f"{self.seed}/evidence")
        evidence = Evidence(
            self.agenda, self.machines, self.trainings, settings, self.bus.tell, noise, is_full=every_tick
        )
        self.analyzer = Service(
            Analyzer(engines_of(settings)), evidence.due, self.agenda, self.bus, signer_of("analyzer"), every_tick
        )
        if any(kind.effect == "drift" for kind in self.scenario.faults):
            answer = self.analyzer.ask(model_request(self.agenda.now(), settings.telemetry))
            assert answer.accepted, answer.message
        self.bus.answer = evidence.answer
        self.bus.watchers.append(evidence.watch)
        return evidence

    def _services(self, every_tick: bool) -> tuple[Service, Service, Service]:
        settings, now = self.policy.settings, self.agenda.now
        rules = Rules(
            timeouts=settings.timeouts,
            ladder=settings.ladder,
            mechanisms=settings.mechanisms,
            hang=settings.hang,
            code=settings.code,
            manifests=manifests_of(self.scenario),
            record=settings.record,
            warm_up=settings.warm_up,
        )
        controller = Controller(rules, settings.retention)
        standby = Standby(settings.timeouts, settings.pool, settings.retention)
        self.heartbeats = standby.last_heartbeats = SimulatedHeartbeats(self.machines, self.agenda)
        kind = ChaoticService if self.scenario.chaos else Service
        return (
            kind(
                controller,
                lambda: due_of_jobs(controller.jobs.values(), now(), settings.ladder),
                self.agenda,
                self.bus,
                signer_of("controller"),
                every_tick,
            ),
            kind(standby, lambda: due_of_nodes(standby.inventory, now()), self.agenda, self.bus, None, every_tick),
            # Its time only writes rows of what was reported.
            kind(Coordinator(settings.checkpoint), lambda: None, self.agenda, self.bus, signer_of("ckpt"), every_tick),
        )

    def _look_for_nodes(self, at_s: float) -> None:
        """Have the standby service notice machines that came back, or are silent for too long."""
        for after_s in (0.0, 1.0, self.policy.settings.timeouts.node_lost_s + 0.001):
            self.standby.look_at(at_s + after_s)

    def _hold_messages(self, fault: Fault) -> None:
        """Hold up what machines send, heartbeats too; the standby service looks at the time as often as it does."""
        since_s, until_s = fault.since_s, fault.since_s + fault.lasts_s
        self.heartbeats.hold(since_s, until_s)
        self.bus.held_until_s = until_s
        if fault.kind.form == ASLEEP:
            for service in (self.standby, self.controller, self.coordinator):
                service.sleep(until_s)
        for tick in range(int((fault.lasts_s + AFTER_SILENCE_S) / TICK_S)):
            self.standby.look_at(since_s + tick * TICK_S)

    def run(
        self,
        days: float | None = None,
        progress: Callable[[float], None] = lambda share: None,
        events_max: int = EVENTS_MAX,
        is_enough: Callable[[], bool] = lambda: False,
    ) -> Cluster:
        """Let the scenario happen; `progress` is called with the share of its time that is over.

        It ends early after `events_max` events: a policy that restarts a job without end would take as long. So it does
        when `is_enough`, which is asked `PARTS` times, says so.
        """
        until_s = (self.scenario.days if days is None else days) * DAY_S
        with self.policy.in_force(Insight(self.ledger, self.agenda, tuple(self.trainings))):
            for part in range(1, PARTS + 1):
                self.agenda.run(until_s * part / PARTS)
                progress(part / PARTS)
                if len(self.log) > events_max:
                    self.is_cut_short = True
                    break
                if is_enough():
                    break
        for training in self.trainings:
            training.settle()
        return self

    # --- jobs -------------------------------------------------------------------------------------

    def _submit_all(self) -> None:
        for training in self.trainings:
            plan = training.plan
            self.agenda.after(plan.submitted_at_h * HOUR_S, partial(self._submit, training, 1))
            if plan.stopped_at_h:
                self.agenda.at(plan.stopped_at_h * HOUR_S, partial(self._stop, training))
        for update in self.scenario.updates:
            self.agenda.at(update.at_h * HOUR_S, partial(self._update, update))
        for release in self.scenario.releases:
            self.agenda.at(release.at_h * HOUR_S, partial(self._release, release.machine))

    def _submit_later(self, training: Training) -> None:
        """Submit a job that ended again, once people have noticed."""
        if training.plan.stopped_at_h:
            return
        life = int(training.job.rpartition("-")[2]) + 1
        after_s = self.scenario.resubmitted_after_h * HOUR_S

        def again() -> None:
            self.effects.mended(training.plan.name)
            self._submit(training, life)

        self.agenda.after(after_s, again)

    def _submit(self, training: Training, life: int) -> None:
        job = f"{training.plan.name}-{life}"
        self._by_job[job] = training
        training.submitted(job)
        plan = training.plan
        request = SubmitJob(
            id=named_id(self.agenda.now(), job, "submit"),
            asked_by="the scenario",
            spec=_spec(plan, job),
            code=CodeOffer(version=digest(plan, plan.version)) if plan.version else None,
        )
        answer = self.controller.ask(request)
        assert answer.accepted, answer.message

    def _update(self, update: Update) -> None:
        """Have a person ask for other code."""
        training = next(it for it in self.trainings if it.plan.name == update.job)
        about = {
            "id": named_id(self.agenda.now(), training.job, "code", update.version),
            "asked_by": "a person",
            "job": training.job,
        }
        request: UpdateJob | RollbackJob = RollbackJob(**about)
        if update.version:
            code = CodeOffer(version=digest(training.plan, update.version))
            request = UpdateJob(**about, code=code, is_urgent=update.is_urgent, within_s=update.within_h * HOUR_S)
        answer = self.controller.ask(request)
        self.asked.append(Asked(self.agenda.seconds, training.job, update, answer.accepted))

    def _stop(self, training: Training) -> None:
        self.controller.ask(
            StopJob(id=named_id(self.agenda.now(), training.job, "stop"), asked_by="a person", job=training.job)
        )

    def _release(self, machine: str) -> None:
        """Take a machine off the blocklist; if it is not on it, the answer reports that."""
        self.standby.ask(
            ReleaseNode(id=named_id(self.agenda.now(), machine, "release"), asked_by="a person", node=machine)
        )

    # --- the bus ----------------------------------------------------------------------------------

    def _obey(self, node: str, order: NodeOrder) -> None:
        self.machines[node].obey(order)

    def _back_up(self, order: BackupOrder) -> None:
        training = self._by_job[order.job]
        if training.job == order.job:
            training.checkpoints.obey(order)

    def _note(self, event: Event) -> None:
        if not isinstance(event, NOT_RECORDED):
            self.log.append((self.agenda.seconds, event))
        if isinstance(event, GenerationStarted | ChecksStarted):
            self._members[event.job or "", event.generation or 0] = event.nodes
        elif isinstance(event, ReplayStarted):
            self._groups[event.job or "", event.generation or 0] = event.groups


def signer_of(service: str) -> OrderSigner:
    key = base64.urlsafe_b64encode(hashlib.sha256(b"proving").digest()).decode().rstrip("=")
    return OrderSigner(service, key)


def _spec(plan: JobPlan, job: str) -> JobSpec:
    return JobSpec(
        name=job,
        script=f"{CODE_ROOT}/{SCRIPT}" if plan.version else SCRIPT,
        code_root=CODE_ROOT if plan.version else "",
        nnodes=plan.nodes,
        nproc_per_node=plan.ranks_per_node,
        mesh=plan.mesh or None,
        cwd="/",
        directory=f"/jobs/{job}",
        allow_scratch=plan.keeps == "nothing",
        persist_every=f"{max(1, round(plan.disk_every_s))}s",
    )
