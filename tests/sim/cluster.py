"""A simulated cluster: the production deciders in their shell, on the in-memory store, with simulated nodes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any

from holdfast import events
from holdfast.bus import BusUnavailable, Message, StreamPosition
from holdfast.daemon.orders.order_repair import EVERY_S, repair_orders
from holdfast.daemon.relay import Relay
from holdfast.daemon.service_shell import ServiceShell
from holdfast.events import DeadlinePassed, Event, GenerationStarted, JobFinished, JobSubmitted
from holdfast.events.parts.job import JobSpec
from holdfast.ids import named_id
from holdfast.orders.node import NodeOrder
from holdfast.requests import StopJob, SubmitJob
from holdfast.settings.decisions.ladder import LadderPolicy
from holdfast.settings.pool import PoolPolicy
from holdfast.settings.timeouts import Timeouts
from holdfast.store.in_memory import MemoryStore
from holdfast_controller.node_order_repair import truths
from holdfast_controller.plan.draft import Rules
from holdfast_controller.service import Controller
from holdfast_proving.chaos.chance import Chaos
from holdfast_proving.chaos.publishing import PublishingBus
from holdfast_standby.service import Standby
from holdfast_standby.state import Inventory
from tests.scenes.order_keys import SIGNER
from tests.sim.bus import SimBus, SimOutbox
from tests.sim.network import SimDelivery, World
from tests.sim.nodes import SimNode
from tests.sim.training import Training
from tests.sim.zygote import LAST_STEP

REDELIVER_S = 3.0
WITHIN_S = 0.1
TICK_S = 0.5
_KEY_PREFIX = "$KV.desired.node."


class SimService:
    """One service: its store survives its crashes, its memory does not."""

    def __init__(self, cluster: SimCluster, make: Callable[[], Controller | Standby]) -> None:
        self.cluster = cluster
        self.make = make
        self.store = MemoryStore(now=cluster.world.now)
        self.crashes = 0
        self.up = True
        self.frozen = False
        self.waiting: list[tuple[float, SimDelivery]] = []
        self.shell = self.new_shell()

    def new_shell(self) -> ServiceShell:
        self._relay = Relay(self.store, PublishingBus(self.cluster.bus, self._dies), now=self.cluster.world.now)  # type: ignore[arg-type]
        now, signer = self.cluster.world.now, SIGNER["controller"]
        return ServiceShell(self.make(), self.cluster.bus, self.store, now, signer)  # type: ignore[arg-type]

    @property
    def handles(self) -> tuple[type[Event], ...]:
        return self.shell.subscriptions

    async def receive(self, delivery: SimDelivery) -> None:
        world, chaos = self.cluster.world, self.cluster.chaos
        if self.frozen or not self.cluster.bus.is_up:
            self.waiting.append((world.seconds, delivery))
            return
        if not delivery.is_stored():
            return
        if self.up:
            await self.shell.handle(delivery)
            if self is self.cluster.controller and ".bad_number." in delivery.subject and delivery.settled:
                self.cluster.judged.setdefault(delivery.body, world.now())
            self.relay_soon()
            if chaos.happens(0.02):
                # Died after the commit: before publishing, or before acknowledging.
                delivery.settled = delivery.settled and chaos.happens(0.5)
                await self.crash()
        if not delivery.settled:
            world.after(REDELIVER_S, lambda: self.cluster.redeliver(self, delivery))

    async def tick(self) -> None:
        if not self.up or self.frozen:
            return
        await self.shell.pass_time()
        if self.store.database.unpublished:
            self.relay_soon()
        elif self.cluster.chaos.happens(0.02):
            await self.crash()

    async def _dies(self) -> bool:
        if self.cluster.chaos.happens(0.02):
            await self.crash()
            return True
        return False

    def freeze(self) -> None:
        """The process stands still for a while, as under SIGSTOP, or waiting for its store."""
        self.frozen = True
        self.cluster.world.after(self.cluster.world.random.uniform(0.5, 40), self._thaw)

    def _thaw(self) -> None:
        self.frozen = False
        self.go_on()

    def go_on(self) -> None:
        """The process runs again, or the bus is back: what waited for that comes within a moment, in any order."""
        self.relay_soon()
        world, waiting = self.cluster.world, self.waiting
        self.waiting = []
        for since, delivery in waiting:
            world.after(WITHIN_S - (world.seconds - since) % WITHIN_S, lambda it=delivery: self.receive(it))

    async def crash(self) -> None:
        self.crashes += 1
        self.up = False

        async def come_back() -> None:
            self.shell = self.new_shell()
            await self.shell.load()
            self.up = True
            self.relay_soon()

        self.cluster.world.after(self.cluster.world.random.random() * 4, come_back)

    def relay_soon(self) -> None:
        self.cluster.world.after(0.001, self.relay)

    async def relay(self) -> None:
        """The outbox onto the bus."""
        if not self.up or self.frozen or not self.cluster.bus.is_up:
            return
        with contextlib.suppress(BusUnavailable):
            await self._relay.publish_pending()


class SimCluster:
    """Everything together, from one seed."""

    def __init__(
        self, seed: int, *, nodes: int, jobs: dict[str, tuple[int, int]], fewest: dict[str, int] | None = None
    ) -> None:
        """`jobs`: name -> (nodes, ranks per node). `fewest`: of those that may have fewer nodes, how few."""
        self.world = World(seed)
        self.chaos = Chaos(self.world.random)
        self.bus = SimBus(self)
        self.published: dict[str, bytes] = {}
        self.log: list[Event] = []
        self.logged: set[str] = set()
        self.outboxes: dict[str, SimOutbox] = {}
        self.stored: list[tuple[datetime, Message]] = []
        self.judged: dict[bytes, datetime] = {}
        self.members: dict[tuple[str, int], tuple[str, ...]] = {}
        self.begun: set[str | None] = set(jobs)
        self.ended: set[str | None] = set()
        self.desired: dict[str, bytes] = {}
        self.heard: dict[str, datetime] = {}
        self.timeouts = Timeouts(
            first_step_s=20, first_step_min_s=10, start_s=20, stop_grace_s=2, checks_s=30, block_s=60, last_call_s=8
        )
        self.trainings = {
            name: Training(nnodes * nproc, partial(self._find, name)) for name, (nnodes, nproc) in jobs.items()
        }
        fewest = fewest or {}
        self.specs = [
            JobSpec(
                name=name,
                script="t.py",
                nnodes=nnodes,
                nnodes_min=fewest.get(name, 0),
                nnodes_max=nnodes if name in fewest else 0,
                nproc_per_node=nproc,
                cwd="/",
                directory=f"/jobs/{name}",
            )
            for name, (nnodes, nproc) in jobs.items()
        ]
        ladder = LadderPolicy(attempts_max=30, slow_cost_max_s=3)
        self.controller = SimService(self, lambda: Controller(Rules(timeouts=self.timeouts, ladder=ladder)))
        self.standby = SimService(self, self._make_standby)
        self.services = (self.controller, self.standby)
        self.requests: set[str] = set()
        """Ids of what somebody asked for."""
        self.nodes = [
            SimNode(
                f"node-{number}", self.world, self.trainings, self.members, self.timeouts, self._say, self._heartbeat
            )
            for number in range(nodes)
        ]
        self.world.after(TICK_S, self._tick)

    def _make_standby(self) -> Standby:
        standby = Standby(self.timeouts, PoolPolicy())
        standby.last_heartbeats = self.heard
        return standby

    def bus_outage(self, loses_s: float = 0.0) -> None:
        """The bus is away for everybody; what was said waits where it was said.

        `loses_s`: it comes back without what it had stored in these last seconds.
        """
        if not self.bus.is_up:
            return
        self.bus.is_up = False
        lost, keys = self.bus.disk.lose_since(self.world.seconds - loses_s) if loses_s else ([], {})
        for id in lost:
            del self.published[id]
        for node, body in keys.items():
            self.desired[node] = body or b""
        cut_off = [node for node in self.nodes if node.connected]
        for node in cut_off:
            node.connected = False

        def back() -> None:
            self.bus.come_back()
            for node in cut_off:
                node.connected = True
            for service in self.services:
                service.go_on()
            for outbox in self.outboxes.values():
                self.world.after(0.001, outbox.relay)

        self.world.after(self.world.random.uniform(1.0, 60.0), back)

    async def submit(self) -> None:
        """A person submits all jobs, asking again under the same id as long as there is no answer."""
        for number, spec in enumerate(self.specs):
            request = SubmitJob(id=named_id(self.world.now(), number), asked_by="sim", spec=spec)
            self.requests.add(request.id)
            for _ in range(2):
                answer = await self.controller.shell.ask(request)
                assert answer.accepted, answer.message
            self.controller.relay_soon()

    async def stop(self, job: str) -> None:
        """A person asks for a job's end; who finds the controller away asks again."""
        controller = self.controller
        if not controller.up or controller.frozen or not self.bus.is_up:
            self.world.after(0.5, lambda: self.stop(job))
            return
        request = StopJob(id=named_id(self.world.now(), job), asked_by="sim", job=job)
        self.requests.add(request.id)
        await controller.shell.ask(request)
        controller.relay_soon()

    def _find(self, job: str, kind: type[Event], fields: dict[str, Any]) -> None:
        """The analyzer's word on a training: its samples are on their way for a while."""

        def say() -> None:
            at = self.world.now()
            self._say(kind(id=named_id(at, job, kind.__name__, len(self.log)), at=at, source="sim", job=job, **fields))

        self.world.after(self.world.random.uniform(0.5, 5.0), say)

    def _say(self, event: Event) -> None:
        if event.source not in self.outboxes:
            self.outboxes[event.source] = SimOutbox(self, event.source, partial(self._obeyed, event.source))
        self.outboxes[event.source].say(event)

    def _obeyed(self, source: str) -> NodeOrder | None:
        return next((node.disk.order for node in self.nodes if source == f"agent/{node.name}"), None)

    def _heartbeat(self, node: str) -> None:
        self.heard[node] = self.world.now()

    async def _tick(self) -> None:
        for service in self.services:
            await service.tick()
        decider = self.controller.shell.decider
        assert isinstance(decider, Controller)
        if (
            self.bus.is_up
            and self.controller.up
            and not self.controller.frozen
            and self.world.seconds % EVERY_S < TICK_S
        ):
            signer, now = SIGNER["controller"], self.world.now
            await repair_orders(self.bus, lambda: truths(decider.orders_in_force(), signer, now))  # type: ignore[arg-type]
        for job, state in decider.jobs.items():
            waits_for = state.incident.failed_step if state.incident else -1
            assert waits_for <= LAST_STEP, f"{job} waits for step {waits_for}, which only a replaced generation made"
        for node in self.nodes:
            # Level-triggered: whatever was missed, the key still says it.
            if node.connected and (body := self.desired.get(node.name)):
                node.remember(body)
        self.world.after(TICK_S, self._tick)

    # --- the bus ----------------------------------------------------------------------------------

    def publish(self, message: Message) -> StreamPosition:
        """Store a message once under its id; deliver it to everyone concerned, now and then more than once."""
        if message.subject.startswith(_KEY_PREFIX):
            return self._put(message.subject.removeprefix(_KEY_PREFIX), message)
        position = self.bus.disk.store(message.subject, message.id, self.world.seconds)
        if message.id in self.published:
            assert self.published[message.id] == message.body, "one id, two bodies"
            return position
        self.published[message.id] = message.body
        event = events.decode(message.body)
        self.stored.append((self.world.now(), message))
        if event.id not in self.logged:
            self.logged.add(event.id)
            self.log.append(event)
        if isinstance(event, GenerationStarted):
            self.members[event.job or "", event.generation or 0] = event.nodes
        if isinstance(event, JobSubmitted):
            self.begun.add(event.job)
        if isinstance(event, JobFinished):
            self.ended.add(event.job)
        if isinstance(event, DeadlinePassed) and event.awaited == "first_step" and event.job in self.trainings:
            training = self.trainings[event.job or ""]
            assert event.generation not in training.stepped, f"{event.job} was called stuck while it trained"
        for service in self.services:
            if isinstance(event, service.handles):
                self._deliver(service, message)
                if self.chaos.happens(0.05):
                    self._deliver(service, message)
        return position

    def _put(self, node: str, message: Message) -> StreamPosition:
        body = message.body
        if message.id and message.id in self.published:
            return StreamPosition("KV_desired", 0)
        self.published[message.id] = body
        position = self.bus.disk.note_put(node, self.desired.get(node), self.world.seconds)
        self.desired[node] = body
        target = next(candidate for candidate in self.nodes if candidate.name == node)

        life = target.life

        def arrive() -> None:
            # An agent that starts reads the newest value first.
            if target.connected and target.life == life:
                target.obey(body)

        if not self.chaos.happens(0.05):
            self.world.after(self.chaos.delay_s(), arrive)
        return position

    def _deliver(self, service: SimService, message: Message) -> None:
        delivery = SimDelivery(
            message.subject, message.body, lambda it: self.redeliver(service, it), 1, self.world.now()
        )
        delivery.is_stored = lambda: message.id in self.published
        self.world.after(self.chaos.delay_s(), lambda: service.receive(delivery))

    def redeliver(self, service: SimService, before: SimDelivery) -> None:
        again = SimDelivery(
            before.subject,
            before.body,
            lambda it: self.redeliver(service, it),
            before.deliveries + service.up,
            before.stored_at,
        )
        again.is_stored = before.is_stored
        self.world.after(self.chaos.delay_s(), lambda: service.receive(again))

    @property
    def is_over(self) -> bool:
        """Every job has ended, and every run that tests nodes of one."""
        return self.begun <= self.ended

    @property
    def is_calm(self) -> bool:
        """Nothing is away or stands still, and no fault is to come."""
        return (
            not self.chaos.active
            and self.bus.is_up
            and all(service.up and not service.frozen for service in self.services)
            and all(node.connected and node.agent is not None for node in self.nodes)
        )

    @property
    def inventory(self) -> Inventory:
        """What the standby service holds."""
        standby = self.standby.shell.decider
        assert isinstance(standby, Standby)
        return standby.inventory

    def phases(self) -> dict[str, str]:
        """Where each job stands."""
        controller = self.controller.shell.decider
        assert isinstance(controller, Controller)
        return {name: state.phase_name for name, state in controller.jobs.items()}
