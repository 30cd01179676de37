"""The bus in memory, for tests and simulation: many clients of one `MemoryBroker`, with the contract of NATS."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from datetime import datetime, timedelta
from typing import Any

from holdfast.bus import BusError, BusUnavailable, KeyUpdate, Message, NoResponder, StreamPosition, StreamState
from holdfast.bus.in_memory_broker import Broker, Consumer, Mailbox, Question, Stored, Stream, subject_matches
from holdfast.subjects import kv_subject

LISTEN_BACKLOG_MAX = 10_000


class MemoryDelivery:
    """A message of a stream. Settling while disconnected does nothing: the message is delivered again."""

    __slots__ = ("_bus", "_consumer", "_settled", "_stored", "deliveries")

    def __init__(self, bus: MemoryBus, consumer: Consumer, stored: Stored, deliveries: int) -> None:
        self._bus = bus
        self._consumer = consumer
        self._stored = stored
        self._settled = False
        self.deliveries = deliveries

    @property
    def subject(self) -> str:
        return self._stored.message.subject

    @property
    def body(self) -> bytes:
        return self._stored.message.body

    @property
    def headers(self) -> dict[str, str]:
        return {"Nats-Msg-Id": self._stored.message.id, **self._stored.message.headers}

    @property
    def stored_at(self) -> datetime:
        return self._stored.at

    async def ack(self) -> None:
        if self._may_settle():
            self._consumer.done(self._stored.sequence)
            self._bus.broker.changed()

    async def retry(self, delay_s: float) -> None:
        """Deliver it again after `delay_s` of the broker's time."""
        if self._may_settle():
            self._consumer.again(self._stored.sequence, self._bus.broker.now() + timedelta(seconds=delay_s))
            self._bus.broker.changed()

    async def drop(self) -> None:
        if self._may_settle():
            self._consumer.done(self._stored.sequence)
            self._bus.broker.changed()

    def _may_settle(self) -> bool:
        if self._settled:
            raise RuntimeError("a delivery is settled once, by ack, retry or drop")
        self._settled = True
        return self._bus.connected_since is not None


class MemoryBus:
    """One client of a `MemoryBroker`, with the methods of `holdfast.bus.Bus`; `disconnect` and `reconnect` simulate the
    network.
    """

    def __init__(self, broker: Broker, name: str) -> None:
        self.broker = broker
        self.name = name
        self._since: datetime | None = broker.now()
        self._session = object()
        self._closed = False

    # --- the connection ---------------------------------------------------------------------------

    @property
    def message_bytes_max(self) -> int:
        return self.broker.max_payload

    @property
    def connected_since(self) -> datetime | None:
        return self._since

    def disconnect(self) -> None:
        """Lose the connection; unsettled messages are delivered again."""
        self._since = None
        self.broker.changed()

    def reconnect(self) -> None:
        if not self._closed:
            self._since = self.broker.now()
            self._session = object()
            self.broker.changed()

    async def close(self) -> None:
        """Disconnect for good; iterations over this bus end."""
        self._closed = True
        self.disconnect()

    def _require_connection(self) -> None:
        if self._since is None:
            raise BusUnavailable(f"{self.name} is not connected to the bus in memory")

    def _require_size(self, size: int, subject: str) -> None:
        if size > self.broker.max_payload:
            raise BusError(f"a message of {size} bytes for {subject} is over the limit of {self.broker.max_payload}")

    async def _connected(self) -> object | None:
        """Return the present connection or wait for the next one; None after `close`."""
        while self._since is None and not self._closed:
            await self.broker.wait()
        return None if self._closed else self._session

    def _holds(self, session: object) -> bool:
        return self._since is not None and self._session is session

    # --- streams and keys ------------------------------------------------------------------------

    async def publish(self, message: Message) -> None:
        await self.publish_all([message])

    async def publish_all(self, messages: list[Message]) -> list[StreamPosition]:
        await asyncio.sleep(0)
        positions = []
        for message in messages:
            self._require_connection()
            self._require_size(message.wire_bytes, message.subject)
            position = self.broker.store(message)
            if position is None:
                raise BusUnavailable(f"no stream takes messages on {message.subject}")
            positions.append(position)
        return positions

    async def lost(self, position: StreamPosition, message_id: str) -> bool:
        await asyncio.sleep(0)
        self._require_connection()
        stream = self.broker.streams[position.stream]
        stored = stream.at(position.sequence)
        return stored.message.id != message_id if stored else stream.next_first <= position.sequence

    async def consume(self, stream: str, consumer: str, filters: list[str]) -> AsyncIterator[MemoryDelivery]:
        while (session := await self._connected()) is not None:
            source = self._consumer(self.broker.streams[stream], consumer, filters)
            if not source.attached:
                source.hand_over(self.broker.now())
            source.attached.add(session)
            try:
                while self._holds(session) and source is source.stream.consumers.get(consumer):
                    taken = source.take(self.broker.now())
                    if taken is None:
                        await self.broker.wait(source.next_due())
                    else:
                        yield MemoryDelivery(self, source, *taken)
            finally:
                source.attached.discard(session)

    def _consumer(self, stream: Stream, name: str, filters: list[str]) -> Consumer:
        consumer = stream.consumers.get(name)
        if consumer is None:
            consumer = stream.consumers[name] = Consumer(stream, filters)
        consumer.filters = filters
        return consumer

    async def last_settled(self, stream: str, consumer: str) -> Message | None:
        await asyncio.sleep(0)
        self._require_connection()
        source = self.broker.streams[stream].consumers.get(consumer)
        stored = source.stream.at(source.settled_up_to) if source else None
        return stored.message if stored else None

    async def start_over(self, stream: str, consumer: str) -> None:
        await asyncio.sleep(0)
        self._require_connection()
        self.broker.streams[stream].consumers.pop(consumer, None)
        self.broker.changed()

    async def stream_state(self, stream: str) -> StreamState:
        await asyncio.sleep(0)
        self._require_connection()
        stored = self.broker.streams[stream].stored
        if not stored:
            return StreamState(messages=0)
        return StreamState(messages=len(stored), newest=stored[-1].message, newest_at=stored[-1].at)

    async def put(self, bucket: str, key: str, body: bytes) -> None:
        await asyncio.sleep(0)
        self._require_connection()
        self._require_size(len(body), kv_subject(bucket, key))
        self.broker.put(bucket, key, body)

    async def get(self, bucket: str, key: str) -> bytes | None:
        await asyncio.sleep(0)
        self._require_connection()
        update = self.broker.buckets[bucket].get(key)
        return None if update is None else update.body

    async def watch(self, bucket: str, key: str) -> AsyncIterator[KeyUpdate]:
        pattern = kv_subject(bucket, key)
        while (session := await self._connected()) is not None:
            mailbox: Mailbox[KeyUpdate] = Mailbox(pattern)
            present = sorted(self.broker.buckets[bucket].values(), key=lambda update: update.revision)
            mailbox.arrived.extend(
                update for update in present if subject_matches(pattern, kv_subject(bucket, update.key))
            )
            self.broker.watchers.add(mailbox)
            try:
                while await self._arrived(session, mailbox):
                    yield mailbox.arrived.popleft()
            finally:
                self.broker.watchers.discard(mailbox)

    async def put_objects(self, bucket: str, objects: Mapping[str, bytes]) -> None:
        await asyncio.sleep(0)
        self._require_connection()
        self.broker.objects[bucket].update(objects)

    async def get_objects(self, bucket: str, names: Collection[str]) -> dict[str, bytes]:
        await asyncio.sleep(0)
        self._require_connection()
        there = self.broker.objects[bucket]
        return {name: there[name] for name in names if name in there}

    # --- core ------------------------------------------------------------------------------------

    async def broadcast(self, subject: str, body: bytes) -> None:
        await asyncio.sleep(0)
        if self._since is not None:
            self.broker.broadcast(subject, body)

    async def listen(self, subject: str) -> AsyncIterator[tuple[str, bytes]]:
        """A slow listener misses the oldest above 10,000."""
        while (session := await self._connected()) is not None:
            mailbox: Mailbox[tuple[str, bytes]] = Mailbox(subject, LISTEN_BACKLOG_MAX)
            self.broker.listeners.add(mailbox)
            try:
                while await self._arrived(session, mailbox):
                    yield mailbox.arrived.popleft()
            finally:
                self.broker.listeners.discard(mailbox)

    async def request(self, subject: str, body: bytes, timeout_s: float) -> bytes:
        await asyncio.sleep(0)
        self._require_connection()
        servers = next((it for name, it in self.broker.servers.items() if it and subject_matches(name, subject)), None)
        if servers is None:
            raise NoResponder(f"nobody answers on {subject}")
        servers.rotate()
        question = Question(body, asyncio.get_running_loop().create_future())
        servers[0].arrived.append(question)
        self.broker.changed()
        try:
            async with asyncio.timeout(timeout_s):
                return await question.answer
        except TimeoutError:
            raise BusUnavailable(f"no answer on {subject} in {timeout_s:g} s") from None

    async def serve(self, subject: str, handler: Callable[[bytes], Awaitable[bytes]]) -> None:
        """Several servers of one subject share its requests."""
        while (session := await self._connected()) is not None:
            mailbox: Mailbox[Question] = Mailbox(subject)
            servers = self.broker.servers.setdefault(subject, deque())
            servers.append(mailbox)
            try:
                while await self._arrived(session, mailbox):
                    question = mailbox.arrived.popleft()
                    answer = await handler(question.body)
                    if self._since is not None and not question.answer.done():
                        question.answer.set_result(answer)
            finally:
                servers.remove(mailbox)

    async def _arrived(self, session: object, mailbox: Mailbox[Any]) -> bool:
        """Wait for messages; return False if the connection broke before any arrived."""
        while self._holds(session):
            if mailbox.arrived:
                return True
            await self.broker.wait()
        return False


class MemoryBroker(Broker):
    """The server's part; start here. `advance` lets its time pass."""

    def client(self, name: str) -> MemoryBus:
        return MemoryBus(self, name)
