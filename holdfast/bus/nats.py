"""The bus over NATS: JetStream for what must not be lost, core NATS for the rest."""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import aclosing
from datetime import datetime
from functools import partial

import msgspec
import structlog

from holdfast.bus import BusUnavailable, KeyUpdate, Message, StreamPosition, StreamState
from holdfast.bus.connection import Connection
from holdfast.bus.consumer import (
    SILENCE_S,
    attach_consumer,
    delete_consumer,
    deliveries_of,
    settled_up_to,
    stored_at_of,
)
from holdfast.bus.link import ANSWER_TIMEOUT_S, ApiRefusal, Inflow, Link, LinkLost, raise_refusal, status_of
from holdfast.bus.nats_py import Msg
from holdfast.bus.objects import get_objects, object_messages
from holdfast.bus.streams import StreamMissing, is_on_another_subject, message_at, message_lost, stream_state
from holdfast.bus.watch import LOOK_AGAIN_S, Watch, is_delete, key_update, newest_value
from holdfast.clock import Now, system_now
from holdfast.settings.addresses import Address
from holdfast.settings.network import NO_FILES, NetworkPolicy
from holdfast.subjects import kv_subject

PUBLISH_WINDOW = 512
"""Publishes that may wait for their acknowledgement at once."""
OBJECT_BATCH_BYTES = 4 << 20
"""Bytes of objects that are published without a pause."""
LISTEN_BACKLOG_MAX = 10_000
"""Broadcasts that a slow listener has not taken; above this the oldest are dropped."""

WAITING_MAX = 1_000
WAITING_BYTES_MAX = 16 << 20
"""Requests of one subject that wait to be answered, and their bytes; above this the oldest are dropped."""

_SERVER_ERROR = 500

log = structlog.get_logger(__name__)


class _Acknowledgement(msgspec.Struct, frozen=True):
    """JetStream's answer to a publish that it stored."""

    stream: str
    seq: int
    duplicate: bool = False


_acknowledgement = msgspec.json.Decoder(_Acknowledgement)


async def connect(
    url: Address,
    name: str,
    *,
    network: NetworkPolicy = NO_FILES,
    makes_streams: bool = True,
    now: Now = system_now,
    timeout_s: float | None = None,
) -> NatsBus:
    """Connect as `name` and make the streams exist, unless these credentials are not for that; waits for the server,
    without limit unless `timeout_s` is given.

    `url` may name several servers, separated by commas. Raises BusUnavailable without a usable server within
    `timeout_s`, BusError if the server refuses these credentials or the streams, or is refused itself: outside loopback
    `network` decides who is trusted.
    """
    connection = Connection(url, name, network, now, makes_streams=makes_streams)
    await connection.start(timeout_s)
    return NatsBus(connection)


class NatsDelivery:
    """A message of a stream. Settling while disconnected does nothing: the message is delivered again."""

    __slots__ = ("_bus", "_message", "_settled")

    def __init__(self, bus: NatsBus, message: Msg) -> None:
        self._bus = bus
        self._message = message
        self._settled = False

    @property
    def subject(self) -> str:
        return self._message.subject

    @property
    def body(self) -> bytes:
        return self._message.data

    @property
    def headers(self) -> dict[str, str]:
        return self._message.headers or {}

    @property
    def deliveries(self) -> int:
        """Number of deliveries to this consumer, those to lost connections and killed processes included."""
        return deliveries_of(self._message.reply)

    @property
    def stored_at(self) -> datetime:
        return stored_at_of(self._message.reply)

    async def ack(self) -> None:
        await self._settle(b"+ACK")

    async def retry(self, delay_s: float) -> None:
        await self._settle(b"-NAK " + msgspec.json.encode({"delay": max(1, round(delay_s * 1e9))}))

    async def drop(self) -> None:
        await self._settle(b"+TERM")

    async def _settle(self, verdict: bytes) -> None:
        if self._settled:
            raise RuntimeError("a delivery is settled once, by ack, retry or drop")
        self._settled = True
        await self._bus.broadcast(self._message.reply, verdict)


class NatsBus:
    """`holdfast.bus.Bus` over NATS, where the methods are described; made by `connect`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def publish(self, message: Message) -> None:
        await self.publish_all([message])

    async def publish_all(self, messages: list[Message]) -> list[StreamPosition]:
        link = self._connection.link_now()
        positions: list[StreamPosition] = []
        awaited: deque[tuple[Message, asyncio.Future[Msg | None]]] = deque()
        try:
            for message in messages:
                if len(awaited) >= PUBLISH_WINDOW:
                    positions.append(await _confirmed(link, *awaited[0]))
                    awaited.popleft()
                headers = {"Nats-Msg-Id": message.id, **message.headers}
                awaited.append((message, await link.ask(message.subject, message.body, headers)))
            while awaited:
                positions.append(await _confirmed(link, *awaited[0]))
                awaited.popleft()
        finally:
            for _, answer in awaited:
                answer.cancel()
        return positions

    async def lost(self, position: StreamPosition, message_id: str) -> bool:
        return await message_lost(self._connection.link_now(), position, message_id)

    async def last_settled(self, stream: str, consumer: str) -> Message | None:
        link = self._connection.link_now()
        sequence = await settled_up_to(link, stream, consumer)
        return await message_at(link, stream, sequence) if sequence else None

    async def start_over(self, stream: str, consumer: str) -> None:
        await delete_consumer(self._connection.link_now(), stream, consumer)

    async def stream_state(self, stream: str) -> StreamState:
        return await stream_state(self._connection.link_now(), stream)

    async def put(self, bucket: str, key: str, body: bytes) -> None:
        link = self._connection.link_now()
        subject = kv_subject(bucket, key)
        await _stored(link, subject, await link.ask(subject, body))

    async def get(self, bucket: str, key: str) -> bytes | None:
        link = self._connection.link_now()
        try:
            message = await newest_value(link, bucket, key)
        except StreamMissing:
            await self._connection.mend(link)
            raise
        return None if message is None or is_delete(message) else message.data

    async def put_objects(self, bucket: str, objects: Mapping[str, bytes]) -> None:
        batch: list[Message] = []
        for name, content in objects.items():
            batch.extend(object_messages(bucket, name, content))
            if sum(len(message.body) for message in batch) >= OBJECT_BATCH_BYTES:
                await self.publish_all(batch)
                batch = []
        await self.publish_all(batch)

    async def get_objects(self, bucket: str, names: Collection[str]) -> dict[str, bytes]:
        return await get_objects(self._connection.link_now(), bucket, names)

    async def consume(self, stream: str, consumer: str, filters: list[str]) -> AsyncIterator[NatsDelivery]:
        """Yield deliveries; at most 1000 are unsettled at once."""
        attach = partial(attach_consumer, stream=stream, consumer=consumer, filters=filters)
        async with aclosing(self._connection.arriving(attach, SILENCE_S)) as messages:
            async for message in messages:
                yield NatsDelivery(self, message)

    async def watch(self, bucket: str, key: str) -> AsyncIterator[KeyUpdate]:
        watch = Watch(bucket, key)
        silence_s = None if watch.has_wildcard else LOOK_AGAIN_S
        async with aclosing(self._connection.arriving(watch.attach, silence_s, expects_silence=True)) as messages:
            async for message in messages:
                if (update := key_update(bucket, key, message)) is not None and watch.is_new(update):
                    yield update

    async def broadcast(self, subject: str, body: bytes) -> None:
        try:
            await self._connection.link_now().send(subject, body)
        except BusUnavailable:
            pass  # by contract nothing is sent while disconnected

    async def listen(self, subject: str) -> AsyncIterator[tuple[str, bytes]]:
        """A slow listener misses the oldest above 10,000, or 64 MiB."""
        attach = partial(_subscribe, subject=subject, backlog_max=LISTEN_BACKLOG_MAX)
        async with aclosing(self._connection.arriving(attach)) as messages:
            async for message in messages:
                yield message.subject, message.data

    async def request(self, subject: str, body: bytes, timeout_s: float) -> bytes:
        return (await self._connection.link_now().answer(subject, body, timeout_s=timeout_s)).data

    async def serve(self, subject: str, handler: Callable[[bytes], Awaitable[bytes]]) -> None:
        """Several servers of one subject share its requests. The oldest of a subject above 1,000, or 16 MiB, are not
        answered.
        """
        turns = _Turns()
        reading = asyncio.create_task(self._read_requests(subject, turns), name=f"requests on {subject}")
        try:
            while (message := await turns.next()) is not None:
                await self.broadcast(message.reply, await handler(message.data))
            await reading
        finally:
            reading.cancel()
            await asyncio.wait([reading])

    async def _read_requests(self, subject: str, turns: _Turns) -> None:
        attach = partial(_subscribe, subject=subject, queue="serve", backlog_max=LISTEN_BACKLOG_MAX)
        try:
            async with aclosing(self._connection.arriving(attach)) as messages:
                async for message in messages:
                    if _is_request(message):
                        turns.put(message)
                    else:
                        log.warning("what is no request is not answered", subject=message.subject, reply=message.reply)
        finally:
            turns.end()

    @property
    def message_bytes_max(self) -> int:
        """Size limit of the server as last reported; its default before."""
        return self._connection.message_bytes_max

    @property
    def connected_since(self) -> datetime | None:
        return self._connection.since

    def link_now(self) -> Link:
        """Return the present link, for requests that only NATS knows; raises BusUnavailable if there is none."""
        return self._connection.link_now()

    async def close(self) -> None:
        """Flush what was published and disconnect; iterations over this bus end."""
        await self._connection.close()


class _Turns:
    """Requests that wait: those of a subject in their order, the subjects in turn, so that none holds up the others."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[Msg]] = {}
        self._bytes: dict[str, int] = {}
        self._changed = asyncio.Event()
        self._ended = False

    def put(self, message: Msg) -> None:
        """Keep a request, in the place of the oldest of its subject if that has too many."""
        subject = message.subject
        waiting = self._waiting.setdefault(subject, deque())
        waiting.append(message)
        self._bytes[subject] = self._bytes.get(subject, 0) + len(message.data)
        while len(waiting) > WAITING_MAX or (self._bytes[subject] > WAITING_BYTES_MAX and len(waiting) > 1):
            self._bytes[subject] -= len(waiting.popleft().data)
        self._changed.set()

    def end(self) -> None:
        self._ended = True
        self._changed.set()

    async def next(self) -> Msg | None:
        """Wait for the request whose turn it is; None: there will be no more."""
        while not self._waiting:
            if self._ended:
                return None
            self._changed.clear()
            await self._changed.wait()
        subject = next(iter(self._waiting))
        waiting = self._waiting.pop(subject)
        message = waiting.popleft()
        self._bytes[subject] -= len(message.data)
        if waiting:
            self._waiting[subject] = waiting  # Behind those of all others.
        else:
            del self._bytes[subject]
        return message


def _is_request(message: Msg) -> bool:
    """Return False for what JetStream published: the body of any message that a stream has, wherever it was asked to.

    So it may come from a user that may not publish here. It asks for no answer, or for an acknowledgement.
    """
    return bool(message.reply) and not message.reply.startswith("$JS.")


async def _subscribe(link: Link, subject: str, queue: str = "", backlog_max: int | None = None) -> Inflow:
    return await link.subscribe(subject, queue, backlog_max)


async def _confirmed(link: Link, message: Message, answer: asyncio.Future[Msg | None]) -> StreamPosition:
    """Return the position of a message that was stored, now or earlier.

    Ids of decisions follow from those of events, which any node can read. What another user has published under such an
    id must not have the server drop ours as a repetition.
    """
    stored = await _stored(link, message.subject, answer)
    position = StreamPosition(stored.stream, stored.seq)
    if not stored.duplicate or not await is_on_another_subject(link, position, message.subject):
        return position
    log.warning("another message has this id, publishing under a new one", id=message.id, subject=message.subject)
    headers = {**message.headers, "Nats-Msg-Id": f"{message.id} {secrets.token_hex(8)}"}
    stored = await _stored(link, message.subject, await link.ask(message.subject, message.body, headers))
    return StreamPosition(stored.stream, stored.seq)


async def _stored(link: Link, subject: str, answer: asyncio.Future[Msg | None]) -> _Acknowledgement:
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            message = await answer
    except TimeoutError:
        raise BusUnavailable(
            f"NATS at {link.address} did not confirm a message on {subject} in {ANSWER_TIMEOUT_S:g} s: "
            "does it still run, and is there space on its disk?"
        ) from None
    if message is None:
        raise LinkLost(f"connection to NATS at {link.address} lost before a message on {subject} was confirmed")
    if status_of(message) == "503":
        raise BusUnavailable(f"no stream at {link.address} takes messages on {subject} now")
    try:
        raise_refusal(f"publish on {subject}", message.data)
    except ApiRefusal as refusal:
        if refusal.error.code < _SERVER_ERROR:
            raise
        raise BusUnavailable(str(refusal)) from refusal
    return _acknowledgement.decode(message.data)
