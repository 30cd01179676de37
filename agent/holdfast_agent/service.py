"""The agent's shell: it learns, lets `plan` decide, makes the decision durable, and does what follows.

Everything that is learned passes `learn`, which never waits: so decisions come one after the other, and from a rank's
death to the evidence lies one SQLite transaction.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime

import msgspec
import structlog

from holdfast.bus import Bus, KeyUpdate, event_message
from holdfast.clock import Now, system_now
from holdfast.daemon.relay import Relay
from holdfast.daemon.service_shell import answer_pings
from holdfast.events import Event, Metric
from holdfast.fresh_ids import uuid7
from holdfast.orders.node import NodeOrder
from holdfast.settings.checkpoint import CheckpointPolicy
from holdfast.settings.inspections import InspectionPolicy
from holdfast.settings.retention import RetentionPolicy
from holdfast.settings.signals import SignalsPolicy
from holdfast.settings.telemetry import TelemetryPolicy
from holdfast.settings.timeouts import Timeouts
from holdfast.subjects import heartbeat_subject
from holdfast_agent.companions.backups import Backups
from holdfast_agent.companions.start_command import start_command
from holdfast_agent.companions.vault_link import VaultLink
from holdfast_agent.companions.zygote_link import ZygoteLink
from holdfast_agent.files.code_store import Brought, CodeStore
from holdfast_agent.files.directories import Directories
from holdfast_agent.files.file_retention import Forgetting
from holdfast_agent.files.spool import Lane, Spool
from holdfast_agent.heartbeat import heartbeat
from holdfast_agent.inspections.reporting import Inspected, Inspecting
from holdfast_agent.node_facts import node_facts, self_check
from holdfast_agent.order_watch import orders_for
from holdfast_agent.plan.actions import (
    Acknowledge,
    Action,
    CloseStores,
    EndZygote,
    FetchCode,
    Fork,
    OpenStore,
    Say,
    Stop,
)
from holdfast_agent.plan.inputs import (
    CodeMissing,
    CodeReady,
    Input,
    LeaveAsked,
    OrderSeen,
    RankEnded,
    RanksRun,
    SignsHeard,
    StartFailed,
    StopDone,
    StoreLost,
    ZygoteFound,
    ZygoteLost,
)
from holdfast_agent.plan.node_state import AgentState, RankStanding, Standing
from holdfast_agent.plan.planner import plan
from holdfast_agent.registration import code_in_place, registration, unreadable_order
from holdfast_agent.slow_tests.probing import Probing
from holdfast_agent.tracer.tracing import Tracing
from holdfast_agent.watching.ledgers import moment
from holdfast_agent.watching.live_lines import LiveLines
from holdfast_agent.watching.rank_telemetry import Telemetry
from holdfast_agent.watching.watcher import Watcher
from holdfast_agent.zygote.wire import (
    AckExit,
    Command,
    End,
    FollowLines,
    Lines,
    RankExit,
    RanksEnded,
    RanksForked,
    Report,
    SignsSeen,
    StartRefused,
    StartStore,
    StopRanks,
    StopStore,
    StoreFailed,
    Welcome,
)

FLUSH_MAX_S = 3.0
"""How long a departing agent waits for the bus to take its last words; what is left stays in the spool."""

_STANDING = "standing"

log = structlog.get_logger(__name__)


class Agent:
    """One node's agent. `connect` gives the bus, and may take as long as it likes: ranks are looked after meanwhile."""

    def __init__(
        self,
        node: str,
        directories: Directories,
        connect: Callable[[], Awaitable[Bus]],
        *,
        address: str = "127.0.0.1",
        timeouts: Timeouts | None = None,
        retention: RetentionPolicy | None = None,
        checkpoint: CheckpointPolicy | None = None,
        inspections: InspectionPolicy | None = None,
        signals: SignalsPolicy | None = None,
        telemetry: TelemetryPolicy | None = None,
        on_ready: Callable[[], None] = lambda: None,
        now: Now = system_now,
    ) -> None:
        self._directories = directories
        self._connect = connect
        self._address = address
        self._timeouts = timeouts or Timeouts()
        self._on_ready = on_ready
        self._now = now
        self._spool = Spool(directories.spool)
        self._state = AgentState(node=node, instance=uuid7(), standing=self._recalled())
        self._link = ZygoteLink(directories.root, address, self._timeouts.orphan_s, self._on_report, self._on_lost)
        self._vault = VaultLink(directories.root, address, self._timeouts.orphan_s, checkpoint)
        self._vault.on_ready = self._register
        self._backups = Backups(node, self._vault, self._say, self._reject, now)
        self._backups.placed(self._state.standing.order)
        self._code = CodeStore(
            directories.code,
            self._timeouts.start_s / 2,
            on_change=self._code_changed,
            on_brought=self._code_brought,
            on_failure=lambda need, reason: self.learn(CodeMissing(id=uuid7(), code=need.key, reason=reason)),
        )
        reads_logs = (signals or SignalsPolicy()).read_training_logs
        self._watcher = Watcher(node, directories, self._spool, self.learn, self._cut_off_s, now, reads_logs)
        self._forgetting = Forgetting(directories, self._spool, (retention or RetentionPolicy()).jobs_on_node_max)
        inspected = Inspected(node=node, root=directories.root, policy=inspections or InspectionPolicy())
        self._inspecting = Inspecting(inspected, self._spool.recall, self._say, now)
        self._inspecting.crew = lambda: self._state.standing.crew
        self._inspecting.on_fitness = self._register
        self._probing = Probing(node, address, directories, lambda: self._state.standing.crew, self._say, now)
        self._tracing = Tracing(node, directories, lambda: self._state.standing.crew, self._say, now)
        every_s = (telemetry or TelemetryPolicy()).every_s
        self._telemetry = Telemetry(
            node, every_s, lambda: self._state.standing.crew, self._watcher.standings, self._say, now
        )
        self._zygote: Welcome | None = None
        self._bus: Bus | None = None
        self._cut_off_since: datetime | None = now()
        self._outboxes = [self._spool.outbox(lane) for lane in Lane]
        self._relays: list[Relay] = []
        self._lines = LiveLines(self._job)
        self._may_register = asyncio.Event()

    async def run(self) -> None:
        """Serve until cancelled; then end the ranks and the zygote, and say so."""
        serving = asyncio.create_task(self._serve(), name="serve")
        try:
            await asyncio.shield(serving)
        except asyncio.CancelledError:
            if not serving.done():
                await self._leave()
            raise
        finally:
            serving.cancel()
            await asyncio.wait([serving])
            if self._bus is not None:
                await self._bus.close()
            self._spool.close()

    async def _serve(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._link.run(), name="zygote")
            group.create_task(self._vault.run(), name="vault")
            group.create_task(self._vault.hand_over(), name="backup orders to the vault")
            group.create_task(self._backups.tell(), name="backups")
            group.create_task(self._watcher.run(), name="ledgers")
            group.create_task(self._forgetting.run(), name="forgetting")
            group.create_task(self._inspecting.run(), name="inspections")
            group.create_task(self._telemetry.run(), name="telemetry")
            self._bus = bus = await self._connect()
            self._relays = [Relay(outbox, bus) for outbox in self._outboxes]
            for lane, relay in zip(Lane, self._relays, strict=True):
                group.create_task(relay.run(), name=f"relay {lane.name.lower()}")
            self._watcher.on_said = self._wake
            group.create_task(self._follow_orders(bus), name="orders")
            group.create_task(self._backups.follow(bus), name="backup orders")
            group.create_task(self._code.run(bus), name="code")
            group.create_task(self._probing.follow(bus), name="slowness")
            group.create_task(self._tracing.follow(bus), name="traces")
            group.create_task(self._beat(bus), name="heartbeat")
            group.create_task(self._lines.broadcast(bus), name="lines")
            group.create_task(self._answer_pings(bus), name="pings")

    async def _leave(self) -> None:
        """Go in order: within the grace for ranks and a moment for the bus."""
        log.info("leaving")
        self.learn(LeaveAsked(id=uuid7()))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._timeouts.stop_grace_s + FLUSH_MAX_S):
                await self._link.ended.wait()
                self._watcher.collect()
                self._wake()
                for outbox in self._outboxes:
                    await outbox.until_empty()
        self._vault.end()
        self._directories.forget_ledgers()

    # --- deciding -------------------------------------------------------------------------------

    def learn(self, seen: Input) -> None:
        """Decide, make it durable, do it."""
        before = self._state
        outcome = plan(before, seen, self._now(), self._timeouts)
        self._state = outcome.state
        said = [action.event for action in outcome.actions if isinstance(action, Say)]
        standing = outcome.state.standing
        if said or standing != before.standing:
            memory = {_STANDING: msgspec.json.encode(standing)} if standing != before.standing else None
            self._spool.commit([event_message(event) for event in said], memory)
            self._wake()
        if outcome.reason:
            log.info("decided", on=type(seen).__name__, reason=outcome.reason)
        commands: list[Command] = []
        for action in outcome.actions:
            if isinstance(action, FetchCode):
                self._code.order(action.order)
            commands.extend(self._commands(action))
        if commands:
            self._link.send(*commands)
        if standing.crew != before.standing.crew:
            self._watcher.watch(standing.crew)
        if standing.order != before.standing.order:
            self._backups.placed(standing.order)
        if any(isinstance(action, EndZygote) for action in outcome.actions):
            self._link.end(End())

    def _commands(self, action: Action) -> list[Command]:
        match action:
            case Fork():
                job = action.order.job or ""
                self._directories.begin_generation(job, action.order.fence)
                self._forgetting.begin(job)
                return [start_command(action.order, self._directories, self._code.place)]
            case Stop():
                return [
                    StopRanks(number=action.number, grace_s=self._timeouts.stop_grace_s, at_once=action.at_once),
                ]
            case OpenStore():
                placement = action.order.placement
                return [StartStore(fence=action.order.fence, port=placement.master_port)] if placement else []
            case CloseStores():
                return [StopStore(keep=action.keep.fence if action.keep else None)]
            case Acknowledge():
                return [AckExit(exit_id=action.exit_id)]
            case _:
                return []

    def _wake(self) -> None:
        for relay in self._relays:
            relay.wake()

    def _say(self, *events: Event, memory: Mapping[str, bytes] | None = None) -> None:
        lane = Lane.MEASUREMENTS if all(isinstance(event, Metric) for event in events) else Lane.EVIDENCE
        self._spool.commit([event_message(event) for event in events], memory, lane)
        self._wake()

    def _job(self) -> str | None:
        """Whose output is broadcast; what checks print is not the job's."""
        crew = self._state.standing.crew
        return crew.order.job if crew is not None and crew.trains else None

    def _recalled(self) -> Standing:
        remembered = self._spool.recall(_STANDING)
        return msgspec.json.decode(remembered, type=Standing) if remembered else Standing()

    # --- the zygote -----------------------------------------------------------------------------

    def _on_report(self, report: Report) -> None:
        match report:
            case RankExit():
                # Its last steps and reports come before its end.
                self._watcher.collect()
                self.learn(self._rank_ended(report))
            case RanksForked():
                self.learn(RanksRun(id=uuid7(), fence=report.fence, pids=report.pids, took_s=report.took_s))
            case RanksEnded():
                self._watcher.collect()
                self.learn(
                    StopDone(
                        id=uuid7(),
                        number=report.number,
                        ranks=report.ranks,
                        killed=report.killed,
                        standings=self._watcher.standings(),
                    )
                )
            case StartRefused():
                self.learn(StartFailed(id=uuid7(), fence=report.fence, reason=report.reason))
            case StoreFailed():
                self.learn(StoreLost(id=uuid7(), fence=report.fence, reason=report.reason))
            case Lines():
                self._lines.put(report)
            case SignsSeen():
                step = self._watcher.standings().get(report.rank, RankStanding()).step
                self.learn(SignsHeard(id=uuid7(), signs=report, step=step))
            case Welcome():
                self._welcomed(report)

    def _welcomed(self, welcome: Welcome) -> None:
        self._zygote = welcome
        self._watcher.watch(self._state.standing.crew)
        self._link.send(FollowLines(ranks=(0,)))
        self.learn(
            ZygoteFound(
                id=uuid7(),
                live=welcome.ranks,
                ended=tuple(self._rank_ended(report) for report in welcome.exits),
                order=welcome.order,
                standings=self._watcher.standings(),
            )
        )
        self._register()
        self._may_register.set()

    def _on_lost(self) -> None:
        self._zygote = None
        self._watcher.collect()
        self.learn(ZygoteLost(id=uuid7(), standings=self._watcher.standings()))

    def _rank_ended(self, report: RankExit) -> RankEnded:
        standing = self._watcher.standings().get(report.rank, RankStanding())
        return RankEnded(id=report.exit_id, exit=report, exited_at=moment(report.exited_ns), standing=standing)

    def _register(self) -> None:
        """Offer the node, with what was looked at."""
        welcome, state = self._zygote, self._state
        if welcome is None or state.leaving or not self._inspecting.has_looked:
            return
        facts = node_facts(self._address, welcome.store_ports, self._vault.port)
        checks = self_check(self._directories.root, welcome) + self._inspecting.self_check()
        self._say(*registration(state, facts, checks, self._now()))

    # --- the bus --------------------------------------------------------------------------------

    def _cut_off_s(self) -> float | None:
        return None if self._cut_off_since is None else (self._now() - self._cut_off_since).total_seconds()

    async def _follow_orders(self, bus: Bus) -> None:
        # Before the zygote answered nothing can be obeyed, and what lives must be adopted first.
        await self._may_register.wait()
        node = self._state.node
        async for order in orders_for(node, bus, NodeOrder, self._reject):
            self.learn(OrderSeen(id=uuid7(), order=order, in_collective=self._in_collective()))

    def _in_collective(self) -> tuple[int, ...]:
        return tuple(rank for rank, standing in self._watcher.standings().items() if standing.in_collective)

    def _code_changed(self, code: frozenset[str]) -> None:
        self.learn(CodeReady(id=uuid7(), code=code, in_collective=self._in_collective()))

    def _code_brought(self, brought: Brought) -> None:
        self._say(code_in_place(self._state.node, brought, self._now()))

    def _reject(self, update: KeyUpdate, body: bytes, error: str) -> None:
        """An order that cannot be read is kept for a look at it; the present one goes on."""
        standing, bus = self._state.standing, self._bus
        if bus is None or update.revision == standing.rejected_revision:
            return
        log.error("an order cannot be read", revision=update.revision, error=error)
        letters = unreadable_order(self._state.node, update, body, error, self._now(), bus.message_bytes_max)
        standing = msgspec.structs.replace(standing, rejected_revision=update.revision)
        self._state = msgspec.structs.replace(self._state, standing=standing)
        self._spool.commit(letters, {_STANDING: msgspec.json.encode(standing)})
        self._wake()

    async def _beat(self, bus: Bus) -> None:
        # From the first moment: a node whose zygote takes long to get warm is not lost.
        connected_since: datetime | None = None
        while True:
            since = bus.connected_since
            if since is None:
                self._cut_off_since = self._cut_off_since or self._now()
            else:
                self._cut_off_since = None
                if connected_since is not None and since != connected_since:
                    self._spool.say_measurements_again()
                    self._register()
                connected_since = since
                body = heartbeat(self._state, self._watcher.standings().values(), self._now())
                await bus.broadcast(heartbeat_subject(self._state.node), body)
            await asyncio.sleep(self._timeouts.heartbeat_s)

    async def _answer_pings(self, bus: Bus) -> None:
        await self._may_register.wait()
        self._on_ready()
        await answer_pings(bus, f"agent-{self._state.node}")
