"""The agent: its parts, how they are connected, and how long they run.

`reconciler.py` decides and `effects.py` carries out, `zygote_reports.py` and `watching/` observe, `publisher.py`
publishes, `bus_contact.py` sends heartbeats. Ranks are looked after whether or not there is a bus.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import structlog

from holdfast.bus import Bus, KeyUpdate
from holdfast.clock import Now, system_now
from holdfast.daemon.pings import answer_pings
from holdfast.events.parts.job import CheckResult
from holdfast.fresh_ids import uuid7
from holdfast.orders.backup import BackupOrder
from holdfast.orders.code import CodeOrder
from holdfast.orders.node import NodeOrder
from holdfast.orders.signatures import OrderKeys
from holdfast.orders.slow import SlowOrder
from holdfast.orders.trace import TraceOrder
from holdfast.settings.checkpoint import CheckpointPolicy
from holdfast.settings.findings.telemetry import TelemetryPolicy
from holdfast.settings.inspections import InspectionPolicy
from holdfast.settings.jobs import JobsPolicy
from holdfast.settings.network import NetworkPolicy
from holdfast.settings.retention import RetentionPolicy
from holdfast.settings.signals import SignalsPolicy
from holdfast.settings.timeouts import Timeouts
from holdfast_agent.bus_contact import BusContact
from holdfast_agent.companions.backups import Backups
from holdfast_agent.companions.contexts import Contexts
from holdfast_agent.companions.vault_link import VaultLink
from holdfast_agent.companions.zygote_link import ZygoteLink
from holdfast_agent.devices.meters import meters_of_node
from holdfast_agent.effects import Effects
from holdfast_agent.files.code_store import CodeStore, FetchedCode
from holdfast_agent.files.directories import Directories
from holdfast_agent.files.file_retention import FileRetention
from holdfast_agent.files.spool import open_spool
from holdfast_agent.inspections.reporting import InspectionSetup, NodeInspections
from holdfast_agent.node_facts import failed_checks, node_facts, self_check
from holdfast_agent.node_hold import Holding, NodeHold, place_of
from holdfast_agent.order_watch import OrderReader
from holdfast_agent.plan.actions import Plan
from holdfast_agent.plan.inputs import CodeMissing, CodeReady, OrderSeen, ShutdownRequested
from holdfast_agent.plan.node_state import AgentState
from holdfast_agent.publisher import Publisher
from holdfast_agent.reconciler import Reconciler, recall_durable
from holdfast_agent.registration import code_in_place, registration, spool_set_aside
from holdfast_agent.slow_tests.probing import Probing
from holdfast_agent.tracer.tracing import Tracing
from holdfast_agent.watching.live_lines import LiveLines
from holdfast_agent.watching.rank_telemetry import Telemetry
from holdfast_agent.watching.watcher import Watcher
from holdfast_agent.zygote.wire import End, Welcome
from holdfast_agent.zygote_reports import ZygoteReports

FLUSH_MAX_S = 3.0
"""Time that a departing agent gives a bus that is away to take its last events; the rest stays in the spool."""

SELF_CHECK_AGAIN_S = 5.0
"""Interval of the self-check while it fails: space on a disk comes back without another sign."""

HOLD_FIRST_S = 0.5
"""Time in which an agent tries to take the hold of its node before it starts anything."""

log = structlog.get_logger(__name__)


class Agent:
    """The agent of one node. `connect` returns the bus and may take any time: ranks run meanwhile."""

    def __init__(
        self,
        node: str,
        directories: Directories,
        connect: Callable[[], Awaitable[Bus]],
        keys: OrderKeys,
        *,
        address: str = "127.0.0.1",
        timeouts: Timeouts | None = None,
        retention: RetentionPolicy | None = None,
        checkpoint: CheckpointPolicy | None = None,
        inspections: InspectionPolicy | None = None,
        signals: SignalsPolicy | None = None,
        telemetry: TelemetryPolicy | None = None,
        network: NetworkPolicy | None = None,
        jobs: JobsPolicy | None = None,
        on_ready: Callable[[], None] = lambda: None,
        now: Now = system_now,
    ) -> None:
        self._directories = directories
        self._connect = connect
        self._address = address
        network = network or NetworkPolicy()
        self._rack = network.rack
        self._timeouts = timeouts = timeouts or Timeouts()
        self._on_ready = on_ready
        self._now = now
        self._bus: Bus | None = None
        self._unfit: frozenset[str] = frozenset()
        """Names of the checks that failed in the published self-check."""
        self._registered = asyncio.Event()
        self._spool, set_aside = open_spool(directories.spool, recall_durable)
        self._publisher = publisher = Publisher(self._spool, node)
        if set_aside is not None:
            log.error("a damaged spool was set aside", path=str(set_aside.path), reason=set_aside.reason)
            publisher.publish(spool_set_aside(node, set_aside, now()))
        self._contact = BusContact(timeouts.heartbeat_s, now, self._on_reconnect)
        self._reconciler = reconciler = Reconciler(node, self._spool, publisher, timeouts, now, self._carry_out)
        self._place = place_of(directories.root)
        self._hold = NodeHold(node, self._holding, self._give_way, now)
        crew, publish = reconciler.crew, publisher.publish
        self._orders = OrderReader(node, keys, self._reject)

        reads_logs = (signals or SignalsPolicy()).read_training_logs
        self._watcher = Watcher(
            node, directories, self._spool, reconciler.learn, self._contact.cut_off_s, now, reads_logs
        )
        self._watcher.on_commit = publisher.wake
        self._lines = LiveLines(node, reconciler.training_job)
        self._reports = ZygoteReports(
            self._watcher,
            self._lines,
            crew,
            reconciler.learn,
            lambda command: self._zygote.send(command),
            lambda: self._effects.rank_user,
        )
        self._reports.on_welcome = self._register
        self._zygote = ZygoteLink(directories.root, address, timeouts, self._reports.take, self._reports.lost)
        self._vault = VaultLink(directories.root, address, timeouts.orphan_s, checkpoint, directories.run_as, network)
        self._vault.on_ready = self._register
        self._backups = Backups(node, self._vault, publish, now)
        self._backups.placed(reconciler.state.durable.order)
        self._code = CodeStore(
            node,
            directories.code,
            timeouts.start_s / 2,
            on_change=self._code_changed,
            on_brought=self._code_brought,
            on_failure=lambda need, reason: reconciler.learn(CodeMissing(id=uuid7(), code=need.key, reason=reason)),
        )
        self._code.in_use(present.order if (present := crew()) is not None else None)
        self._code.in_use(reconciler.state.durable.order)
        jobs_max = (retention or RetentionPolicy()).jobs_on_node_max
        self._retention = FileRetention(directories, self._spool, jobs_max, on_removed=self._code.forget)
        room_bytes = (jobs or JobsPolicy()).context_room_bytes
        self._contexts = Contexts(node, room_bytes, crew, self._zygote.send, publish, now)
        self._reports.contexts = self._contexts
        self._watcher.on_device_used = self._contexts.device_used
        self._effects = Effects(
            address,
            directories,
            timeouts,
            self._zygote,
            self._code,
            self._retention,
            self._watcher,
            self._backups,
            self._contexts,
        )

        inspections = inspections or InspectionPolicy()
        inspected = InspectionSetup(node=node, address=address, root=directories.root, policy=inspections)
        self._inspecting = NodeInspections(inspected, self._spool.recall, publish, now)
        self._inspecting.crew = crew
        self._inspecting.on_fitness = self._register
        self._probing = Probing(
            node, address, directories, crew, publish, now, on_question=self._inspecting.note_slow_job
        )
        telemetry = telemetry or TelemetryPolicy()
        self._meters = meters_of_node(inspections, telemetry)
        self._tracing = Tracing(node, directories, crew, publish, now, self._meters)
        self._telemetry = Telemetry(node, telemetry.every_s, crew, self._watcher.statuses, publish, now, self._meters)

    async def run(self) -> None:
        """Serve until cancelled; then end the ranks and the zygote, and report the departure."""
        serving = asyncio.create_task(self._serve(), name="serve")
        try:
            await asyncio.shield(serving)
        except asyncio.CancelledError:
            if not serving.done():
                await self._leave(serving)
            if serving.done():
                # What has failed meanwhile is logged, and the node is left all the same.
                serving.result()
            raise
        finally:
            serving.cancel()
            await asyncio.wait([serving])
            if self._meters is not None:
                self._meters.close()
            if self._bus is not None:
                await self._bus.close()
            self._spool.close()

    async def _serve(self) -> None:
        async with asyncio.TaskGroup() as group:
            connecting = group.create_task(self._connect_and_hold(), name="connect")
            # An agent that is refused starts nothing; one without a bus looks after its ranks.
            await asyncio.wait([connecting], timeout=HOLD_FIRST_S)
            group.create_task(self._zygote.run(), name="zygote")
            group.create_task(self._vault.run(), name="vault")
            group.create_task(self._vault.hand_over(), name="backup orders to the vault")
            group.create_task(self._backups.report(), name="backups")
            group.create_task(self._watcher.run(), name="ledgers")
            group.create_task(self._retention.run(), name="file retention")
            group.create_task(self._inspecting.run(), name="inspections")
            group.create_task(self._telemetry.run(), name="telemetry")
            bus = await connecting
            group.create_task(self._hold.answer(bus), name="holder")
            group.create_task(self._hold.watch(bus), name="other agents")
            self._publisher.start_relays(bus, group, lambda: self._reconciler.state.durable.order)
            group.create_task(self._follow_orders(bus), name="orders")
            orders, crew, now = self._orders, self._reconciler.crew, self._now
            group.create_task(self._backups.follow(orders.for_node(bus, BackupOrder)), name="backup orders")
            group.create_task(self._code.run(bus, orders.for_jobs(bus, CodeOrder, crew)), name="code")
            group.create_task(self._probing.follow(orders.for_crew(bus, SlowOrder, crew, now)), name="slowness")
            group.create_task(self._tracing.follow(orders.for_crew(bus, TraceOrder, crew, now)), name="traces")
            group.create_task(self._beat(bus), name="heartbeat")
            group.create_task(self._lines.broadcast(bus), name="lines")
            group.create_task(self._answer_pings(bus), name="pings")
            group.create_task(self._announce(), name="ready")
            group.create_task(self._check_again(), name="self-check")

    async def _connect_and_hold(self) -> Bus:
        self._bus = bus = await self._connect()
        await self._hold.take(bus)
        return bus

    async def _leave(self, serving: asyncio.Task[None]) -> None:
        """End the ranks within their grace, and give the bus a moment; without `serving` their ends are not noticed."""
        log.info("leaving")
        self._reconciler.learn(ShutdownRequested(id=uuid7()))
        ended = asyncio.create_task(self._zygote.ended.wait(), name="zygote's end")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._timeouts.stop_grace_s + FLUSH_MAX_S):
                await asyncio.wait([ended, serving], return_when=asyncio.FIRST_COMPLETED)
                if ended.done():
                    self._watcher.collect()
                    await self._flush()
        ended.cancel()
        self._vault.end()
        self._directories.forget_ledgers()

    async def _flush(self) -> None:
        """Give the bus the last events while it is there. It may be gone already: then they are sent after the next
        start.
        """
        flushing = asyncio.create_task(self._publisher.until_empty(), name="flush")
        try:
            while not flushing.done():
                await asyncio.wait([flushing], timeout=FLUSH_MAX_S)
                if self._bus is None or self._bus.connected_since is None:
                    return
            flushing.result()
        finally:
            flushing.cancel()

    def _give_way(self) -> None:
        """End what runs here, at once and without publishing a departure: the node goes on under another agent."""
        self._zygote.end(End())
        self._vault.end()

    async def _follow_orders(self, bus: Bus) -> None:
        # Living ranks are adopted before the first order.
        await self._reports.attached.wait()
        async for signed in self._orders.for_node(bus, NodeOrder):
            in_collective = self._in_collective()
            self._reconciler.learn(
                OrderSeen(id=uuid7(), order=signed.order, signed_at=signed.signed_at, in_collective=in_collective)
            )

    def _reject(self, bucket: str, update: KeyUpdate, error: str) -> None:
        if self._bus is not None:
            self._reconciler.reject_order(bucket, update, error, self._bus.message_bytes_max)

    def _carry_out(self, decided: Plan, before: AgentState) -> None:
        self._effects.carry_out(decided, before)
        if decided.state.crew != before.crew:
            self._inspecting.note_ranks()

    def _in_collective(self) -> tuple[int, ...]:
        return tuple(rank for rank, status in self._watcher.statuses().items() if status.in_collective)

    def _code_changed(self, code: frozenset[str]) -> None:
        self._reconciler.learn(CodeReady(id=uuid7(), code=code, in_collective=self._in_collective()))

    def _code_brought(self, brought: FetchedCode) -> None:
        self._publisher.publish(code_in_place(self._reconciler.state.node, brought, self._now()))

    def _register(self) -> None:
        """Publish the node's facts and self-check, once the zygote, the vault and all inspections have answered.

        A job that is granted a node without its vault would have no copies there until its next generation.
        """
        welcome, state = self._reports.welcome, self._reconciler.state
        if welcome is None or state.leaving or not self._inspecting.has_looked or not self._vault.has_settled:
            return
        facts = node_facts(self._address, welcome.store_ports, self._vault.port, self._rack)
        checks = self._self_check(welcome)
        self._unfit = failed_checks(checks)
        self._publisher.publish(*registration(state, facts, checks, self._now()))
        self._registered.set()

    def _self_check(self, welcome: Welcome) -> tuple[CheckResult, ...]:
        return self_check(self._directories.root, welcome) + self._inspecting.self_check()

    async def _check_again(self) -> None:
        """Register again when another check fails than before, or none."""
        while True:
            await asyncio.sleep(SELF_CHECK_AGAIN_S)
            welcome = self._reports.welcome
            if self._unfit and welcome is not None and failed_checks(self._self_check(welcome)) != self._unfit:
                self._register()

    def _on_reconnect(self) -> None:
        self._register()

    async def _beat(self, bus: Bus) -> None:
        statuses = self._watcher.statuses
        await self._contact.beat(bus, lambda: self._reconciler.state, lambda: statuses().values(), self._holding)

    def _holding(self) -> Holding:
        instance = self._reconciler.state.instance
        return Holding(instance=instance, since=self._contact.present_since, place=self._place)

    async def _announce(self) -> None:
        """Be ready once the node is known to be free: a job that begins then finds it."""
        await self._registered.wait()
        with contextlib.suppress(TimeoutError):
            # A bus that takes nothing, as on a full disk, must not keep a cluster from coming up.
            async with asyncio.timeout(FLUSH_MAX_S):
                await self._publisher.until_empty()
        self._on_ready()

    async def _answer_pings(self, bus: Bus) -> None:
        await self._reports.attached.wait()
        await answer_pings(bus, f"agent-{self._reconciler.state.node}", self._register)
