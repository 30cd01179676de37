"""The shell of every deciding service: receive, decide, one transaction, publish, acknowledge.

A service has a `Decider`, which holds the state in memory and decides by pure functions. The shell makes its effects
durable: rows, inbox and outbox in one transaction; then the decider adopts them, the relay publishes, and the message
is acknowledged. All inputs of a service pass through one queue.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, TypeVar

import msgspec
import structlog

from holdfast import events, requests
from holdfast.bus import Bus, BusUnavailable, Delivery
from holdfast.clock import Now, system_now
from holdfast.daemon.dead_letters import UnhandledMessage, rejection
from holdfast.daemon.effect_limits import EffectTooLarge, messages_of, require_sendable
from holdfast.daemon.jobs.admission import Admission
from holdfast.daemon.liveness import TICK_S, BusLiveness
from holdfast.daemon.pings import answer_pings
from holdfast.daemon.ready import announce_ready
from holdfast.daemon.relay import Relay
from holdfast.daemon.retrying import until_available
from holdfast.effects import Effect
from holdfast.events import AnyEvent, Event
from holdfast.orders.signatures import OrderSigner
from holdfast.requests import Answer, AnyRequest
from holdfast.store import DatabaseReplaced, StaleState, Store, StoreUnavailable, Table
from holdfast.subjects import event_subject, stream_of, type_filter

HANDLING_TRIES_MAX = 5
"""A message whose handling fails this often in one life of the process goes to the dead letters."""

_PRUNE_EVERY_S = 3600.0
_CLOCKS_APART = timedelta(minutes=5)  # a mark further ahead is of a wrong clock: the next pruning corrects it
_SIGNED_WITHIN_S = 10.0
_LOOK_AGAIN_S = 0.05
_ORDERS_FIRST_S = 0.05
"""Time for which decisions wait until orders have left: nodes wait for those, and a decision holds the processor."""
_QUEUE_MAX = 512
_IGNORED_PER_LINE = 1000
"""A consumer that was deleted and made again receives weeks of messages."""

_MessageKey = tuple[str, str]
"""A message's id and subject: what the inbox knows it by."""

T = TypeVar("T")
log = structlog.get_logger()


class Decider(ABC):
    """The decisions of one service. The three `on_…` methods change nothing; `adopt` follows a commit.

    By default a service has no tables, serves no requests and does nothing as time passes.
    """

    name: str
    handles: tuple[type[Event], ...]
    tables: tuple[Table[Any], ...] = ()
    requests_subject: str | None = None
    knows_nodes = False
    """True: it decides from what a job's own nodes publish about the job; see `jobs.job_nodes`."""

    def load(self, rows: Mapping[str, Mapping[str, Any]]) -> None:  # noqa: B027 - many services store no state
        """Replace the state by the stored one: table name -> key -> row."""

    @abstractmethod
    def on_event(self, event: AnyEvent, now: datetime) -> Effect:
        """Decide about an event."""

    def on_request(self, request: AnyRequest, now: datetime) -> Effect:
        """Decide about a person's request; the effect has the answer."""
        return Effect(answer=Answer(accepted=False, message=f"the {self.name} does not serve this request"))

    def on_time(self, now: datetime, hearing_since: datetime | None) -> Effect:
        """Decide every half second. Silence counts only from `hearing_since`, when unbroken reception began; None: no
        connection.
        """
        return Effect()

    def adopt(self, effect: Effect) -> None:  # noqa: B027 - many services store no state
        """Apply a committed effect to the state."""


_DONE_BEFORE = Answer(accepted=True, message="done before")


class _ReadOnly(Exception):
    """Rolls back a transaction that only reads."""


class _PendingRequest(msgspec.Struct):
    request: AnyRequest
    answer: asyncio.Future[Answer]


class ServiceShell:
    def __init__(
        self,
        decider: Decider,
        bus: Bus,
        store: Store,
        now: Now = system_now,
        signer: OrderSigner | None = None,
        liveness: BusLiveness | None = None,
        repair: Callable[[], Awaitable[None]] | None = None,
        prepare: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`signer` signs orders, `repair` replaces those on the bus that it did not sign.

        `prepare` runs after the decider has read its state and before its first decision.
        """
        self.decider = decider
        self.bus = bus
        self.store = store
        self.now = now
        self._signer = signer
        self._repair = repair
        self._prepare = prepare
        self.relay = Relay(store, bus, source=decider.name)
        self._queue: asyncio.Queue[Delivery | _PendingRequest] = asyncio.Queue(_QUEUE_MAX)
        self._turn = asyncio.Lock()
        self._liveness = liveness or BusLiveness(bus, now)
        self._failures: Counter[tuple[str, str]] = Counter()
        self._forgotten_before: datetime | None = None
        self._ignored = 0
        self._has_ordered = False
        self._admission = Admission(decider.knows_nodes)
        self.loaded = asyncio.Event()
        """Set once the decider has read its state."""

    @property
    def subscriptions(self) -> tuple[type[Event], ...]:
        """The types of event that the service receives."""
        return tuple(dict.fromkeys((*self.decider.handles, *self._admission.learns_from)))

    async def run(self) -> None:
        await self.load()
        if self._prepare is not None:
            await self._prepare()
        self.loaded.set()
        async with asyncio.TaskGroup() as group:
            group.create_task(self.relay.run(), name="relay")
            group.create_task(self._work(), name="work")
            if type(self.decider).on_time is not Decider.on_time:
                group.create_task(self._keep_time(), name="time")
            group.create_task(self._prune(), name="prune")
            filters: dict[str, list[str]] = defaultdict(list)
            for event_type in self.subscriptions:
                filters[stream_of(event_type)].append(type_filter(event_type))
            for stream, subjects in filters.items():
                group.create_task(self._receive(stream, subjects), name=f"receive {stream}")
            group.create_task(answer_pings(self.bus, self.decider.name, sign_again=self._sign_again), name="pings")
            if self.decider.requests_subject:
                group.create_task(self.bus.serve(self.decider.requests_subject, self._answer), name="requests")
            announce_ready()

    async def load(self) -> None:
        """Read the state from the store, however long that takes."""

        await self._retrying(self._read)
        self._forgotten_before = await self._retrying(self.store.forgotten_before)

    async def _read(self) -> None:
        async with self.store.transaction() as tx:
            tables = (*self.decider.tables, *self._admission.tables)
            rows = {table.name: await tx.load_all(table) for table in tables}
        self.decider.load(rows)
        self._admission.load(rows)

    async def ask(self, request: AnyRequest) -> Answer:
        """Handle one request; refuse it on any error, which must not end the service."""
        try:
            return await self._in_turn(self._decide_request, request)
        except EffectTooLarge as error:
            return Answer(accepted=False, message=str(error))
        except DatabaseReplaced:
            raise
        except Exception as error:
            log.exception("a request could not be handled", request=type(request).__name__, id=request.id)
            return Answer(accepted=False, message=f"an error occurred: {type(error).__name__}: {error}")

    async def _sign_again(self) -> bytes:
        """Bring all orders to the present key; return the public one, or nothing if that is not possible now."""
        if self._signer is None:
            return b""
        try:
            async with asyncio.timeout(_SIGNED_WITHIN_S):
                async with self._turn:
                    key = self._signer.refreshed()
                # Committed orders may have the signature of another key until the relay has published them.
                while await self.store.pending(1):
                    self.relay.wake()
                    await asyncio.sleep(_LOOK_AGAIN_S)
                if self._repair is not None:
                    await self._repair()
        except (TimeoutError, BusUnavailable, StoreUnavailable) as error:
            log.warning("orders are not all signed again yet", reason=str(error) or type(error).__name__)
            return b""
        return key.encode()

    async def _receive(self, stream: str, subjects: list[str]) -> None:
        async for delivery in self.bus.consume(stream, self.decider.name, subjects):
            await self._queue.put(delivery)

    async def _work(self) -> None:
        while True:
            item = await self._queue.get()
            if isinstance(item, _PendingRequest):
                answer = await self.ask(item.request)
                if not item.answer.done():
                    item.answer.set_result(answer)
            else:
                await self.handle(item)
            if self._has_ordered:
                self._has_ordered = False
                await self.relay.until_published(_ORDERS_FIRST_S)

    async def _in_turn(self, decide: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Run a decision alone: a decision sees all effects of another or none."""
        async with self._turn:
            return await decide(*args)

    async def handle(self, delivery: Delivery) -> None:
        if self._may_be_forgotten(delivery):
            await delivery.ack()
            return
        try:
            event = events.decode(delivery.body)
            if event_subject(event) != delivery.subject:
                raise events.UnreadableEvent(f"the body belongs on {event_subject(event)!r}, another subject")
        except events.UnreadableEvent as error:
            await self._reject(delivery, str(error))
            return
        if not self._admission.admits(event, delivery, self.now()):
            await delivery.ack()
            return
        try:
            await self._in_turn(self._decide_event, event)
        except DatabaseReplaced:
            raise  # no fault of this message
        except Exception as error:
            tries = self._failures[event.id, delivery.subject] = self._failures[event.id, delivery.subject] + 1
            log.exception("handling failed", type=event.type, id=event.id, tries=tries)
            if tries < HANDLING_TRIES_MAX:
                await delivery.retry(0.1 * 4**tries)
                return
            await self._reject(delivery, f"{type(error).__name__}: {error}")
        else:
            await delivery.ack()
        self._failures.pop((event.id, delivery.subject), None)
        for held in self._admission.released(event):
            await self._handle_early(held.event, held.delivery)

    async def _handle_early(self, event: AnyEvent, delivery: Delivery) -> None:
        """Handle an event whose delivery is settled already."""
        try:
            await self._in_turn(self._decide_event, event)
        except DatabaseReplaced:
            raise
        except Exception as error:
            log.exception("handling failed", type=event.type, id=event.id)
            await self._to_dead_letters(delivery, f"{type(error).__name__}: {error}")

    def _may_be_forgotten(self, delivery: Delivery) -> bool:
        """Return True if this message may have been handled before the inbox forgot it: it must not act again."""
        before = self._forgotten_before
        if before is None or delivery.stored_at >= before or before > self.now() + _CLOCKS_APART:
            return False
        if self._ignored % _IGNORED_PER_LINE == 0:
            log.warning(
                "messages from before the inbox was pruned may have been handled: they are not acted on",
                subject=delivery.subject,
                stored_at=delivery.stored_at.isoformat(),
                ignored=self._ignored + 1,
            )
        self._ignored += 1
        return True

    async def _decide_event(self, event: AnyEvent) -> None:
        async def attempt() -> None:
            effect = self.decider.on_event(event, self.now()).together(self._admission.learned(event))
            if not effect.is_nothing:
                await self._commit(effect, (event.id, event_subject(event)))

        await self._retrying(attempt)

    async def _decide_request(self, request: AnyRequest) -> Answer:
        message = (request.id, self.decider.requests_subject or "")

        async def attempt() -> Answer:
            effect = self.decider.on_request(request, self.now())
            if effect.is_nothing:
                return _DONE_BEFORE if await self._was_handled(message) else effect.answer
            return effect.answer if await self._commit(effect, message) else _DONE_BEFORE

        return await self._retrying(attempt)

    async def _was_handled(self, message: _MessageKey) -> bool:
        handled = False
        try:
            async with self.store.transaction() as tx:
                handled = not await tx.first_time(*message)
                raise _ReadOnly
        except _ReadOnly:
            return handled

    async def pass_time(self) -> None:
        """Let the decider act on the current time; to be called every `TICK_S`."""
        self._liveness.tick()

        async def attempt() -> None:
            effect = self.decider.on_time(self.now(), self._liveness.since)
            if not effect.is_nothing:
                await self._commit(effect, None)

        await self._in_turn(self._retrying, attempt)

    async def _commit(self, effect: Effect, message: _MessageKey | None) -> bool:
        """Make an effect durable and adopt it; return False if the message had been handled before."""
        messages = messages_of(effect, self._signer, self.now())
        require_sendable(messages, self.bus.message_bytes_max)
        async with self.store.transaction() as tx:
            if message is not None and not await tx.first_time(*message):
                # An earlier commit of this message seemed to fail; its messages may be unpublished.
                self.relay.wake()
                return False
            for row in effect.rows:
                if row.row is None:
                    await tx.delete(row.table, row.key)
                else:
                    await tx.save(row.table, row.key, row.row)
            await tx.emit(messages)
        self.decider.adopt(effect)
        self._admission.adopt(effect)
        self.relay.wake()
        self._has_ordered = self._has_ordered or bool(effect.orders)
        return True

    async def _retrying(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Retry while the store is unavailable; the state in memory may be stale then, so it is read again first."""

        async def again() -> T:
            self._liveness.interrupt()
            # A commit that seemed to fail may have succeeded, with messages in the outbox.
            self.relay.wake()
            await self._read()
            return await attempt()

        return await until_available(attempt, (StoreUnavailable, StaleState), "store", again)

    async def _reject(self, delivery: Delivery, error: str) -> None:
        await self._to_dead_letters(delivery, error)
        await delivery.drop()

    async def _to_dead_letters(self, delivery: Delivery, error: str) -> None:
        log.error("message rejected", subject=delivery.subject, error=error)
        unhandled = UnhandledMessage(
            consumer=self.decider.name,
            subject=delivery.subject,
            body=delivery.body,
            error=error,
            message_id=delivery.headers.get("Nats-Msg-Id", ""),
            deliveries=delivery.deliveries,
        )
        letter, report = rejection(unhandled, self.now(), self.bus.message_bytes_max)

        async def attempt() -> None:
            async with self.store.transaction() as tx:
                await tx.emit([letter, report])
            self.relay.wake()

        await self._in_turn(self._retrying, attempt)

    async def _answer(self, body: bytes) -> bytes:
        try:
            request = requests.decode(body)
        except requests.UnreadableRequest as error:
            return msgspec.json.encode(Answer(accepted=False, message=f"the request cannot be read: {error}"))
        pending = _PendingRequest(request, asyncio.get_running_loop().create_future())
        await self._queue.put(pending)
        return msgspec.json.encode(await pending.answer)

    async def _keep_time(self) -> None:
        while True:
            await self.pass_time()
            await asyncio.sleep(TICK_S)

    async def _prune(self) -> None:
        while True:
            await asyncio.sleep(_PRUNE_EVERY_S)
            await self._retrying(lambda: self.store.prune(self.now()))
            self._forgotten_before = await self._retrying(self.store.forgotten_before)
