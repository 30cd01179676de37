"""The server of the bus in memory: streams, consumers, key buckets, listeners and a clock."""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from datetime import datetime, timedelta
from typing import Generic, TypeVar

import msgspec

from holdfast.bus import KeyUpdate, Message, StreamPosition
from holdfast.clock import Now, system_now
from holdfast.subjects import CODE_BUCKET, KEY_BUCKETS, STREAMS, StreamSpec, kv_subject

DUPLICATE_WINDOW = timedelta(seconds=120)
IN_FLIGHT_MAX = 1000

A = TypeVar("A")


def subject_matches(pattern: str, subject: str) -> bool:
    """Return True if a subject matches a NATS pattern: `*` is one token, a final `>` one or more."""
    wanted, given = pattern.split("."), subject.split(".")
    for position, token in enumerate(wanted):
        if token == ">":
            return len(given) > position
        if position >= len(given) or token not in ("*", given[position]):
            return False
    return len(wanted) == len(given)


class RecentIds:
    """The message ids of the duplicate window, oldest first."""

    def __init__(self) -> None:
        self._ids: dict[str, datetime] = {}

    def is_new(self, message_id: str, now: datetime) -> bool:
        """Note an id; return False if it was noted within the window. The empty id is always new."""
        if not message_id:
            return True
        while self._ids and now - next(iter(self._ids.values())) >= DUPLICATE_WINDOW:
            del self._ids[next(iter(self._ids))]
        if message_id in self._ids:
            return False
        self._ids[message_id] = now
        return True


class Stored(msgspec.Struct, frozen=True):
    sequence: int
    message: Message
    at: datetime


class Consumer:
    """A durable consumer: its deliveries, which of them are unsettled, and the times of repeated deliveries."""

    def __init__(self, stream: Stream, filters: list[str]) -> None:
        self.stream = stream
        self.filters = filters
        self.attached: set[object] = set()
        self.deliveries: dict[int, int] = {}
        self._next = 1
        self._unsettled: set[int] = set()
        self._again: list[tuple[datetime, int]] = []

    def take(self, now: datetime) -> tuple[Stored, int] | None:
        """Return the next message with its number of deliveries; repeated deliveries go first."""
        while self._again and self._again[0][0] <= now:
            _, sequence = heapq.heappop(self._again)
            stored = self.stream.at(sequence)
            if stored is not None and sequence in self.deliveries and sequence not in self._unsettled:
                return self._delivered(stored)
        while len(self._unsettled) < IN_FLIGHT_MAX:
            stored = self.stream.first_from(self._next)
            if stored is None:
                return None
            self._next = stored.sequence + 1
            if any(subject_matches(pattern, stored.message.subject) for pattern in self.filters):
                return self._delivered(stored)
        return None

    @property
    def settled_up_to(self) -> int:
        """Number of the message up to which all are settled."""
        return min(self.deliveries, default=self._next) - 1

    def _delivered(self, stored: Stored) -> tuple[Stored, int]:
        count = self.deliveries.get(stored.sequence, 0) + 1
        self.deliveries[stored.sequence] = count
        self._unsettled.add(stored.sequence)
        return stored, count

    def next_due(self) -> datetime | None:
        return self._again[0][0] if self._again else None

    def done(self, sequence: int) -> None:
        self._unsettled.discard(sequence)
        self.deliveries.pop(sequence, None)

    def again(self, sequence: int, due: datetime) -> None:
        if sequence in self.deliveries:
            self._unsettled.discard(sequence)
            heapq.heappush(self._again, (due, sequence))

    def hand_over(self, now: datetime) -> None:
        """Deliver all unsettled messages again at once: their receiver is gone."""
        for sequence in sorted(self._unsettled):
            self.again(sequence, now)


class Stream:
    """A stream: its messages and consumers."""

    def __init__(self, spec: StreamSpec) -> None:
        self.spec = spec
        self.consumers: dict[str, Consumer] = {}
        self.stored: deque[Stored] = deque()
        self._sequence = 0
        self._ids = RecentIds()

    @property
    def messages(self) -> list[Message]:
        return [stored.message for stored in self.stored]

    def takes(self, subject: str) -> bool:
        return any(subject_matches(pattern, subject) for pattern in self.spec.subjects)

    @property
    def next_first(self) -> int:
        """Number of the first message that has not expired, or of the next message."""
        return self.stored[0].sequence if self.stored else self._sequence + 1

    def store(self, message: Message, now: datetime) -> int:
        """Store a message, unless the same message was stored within the duplicate window; return its number."""
        if not self._ids.is_new(message.id, now):
            return next((it.sequence for it in reversed(self.stored) if it.message.id == message.id), 0)
        self._sequence += 1
        self.stored.append(Stored(self._sequence, message, now))
        while self.stored and now - self.stored[0].at > timedelta(seconds=self.spec.keep_s):
            self.stored.popleft()
        return self._sequence

    def at(self, sequence: int) -> Stored | None:
        """Return the message with this number, if it has not expired."""
        stored = self.first_from(sequence)
        return stored if stored is not None and stored.sequence == sequence else None

    def first_from(self, sequence: int) -> Stored | None:
        """Return the first message with this number or a later one."""
        if not self.stored or sequence > self._sequence:
            return None
        # Numbers have no gaps: only the front is ever removed.
        return self.stored[max(0, sequence - self.stored[0].sequence)]

    def clear(self) -> None:
        """Lose all messages, like a stream in memory at a restart of its server."""
        self.consumers.clear()
        self.stored.clear()
        self._sequence = 0
        self._ids = RecentIds()


class Mailbox(Generic[A]):
    """Messages for a listener on a subject pattern; above `most` the oldest is dropped."""

    def __init__(self, subject: str, most: int | None = None) -> None:
        self.subject = subject
        self.arrived: deque[A] = deque(maxlen=most)


class Question(msgspec.Struct, eq=False):
    """A request under way."""

    body: bytes
    answer: asyncio.Future[bytes]


class Broker:
    """A bus server in memory, shared by its clients. Its time is `now` plus what `advance` added, so what is due is
    delivered without a sleep.
    """

    def __init__(self, *, now: Now = system_now, max_payload: int = 1 << 20) -> None:
        self.max_payload = max_payload
        self.streams = {spec.name: Stream(spec) for spec in STREAMS}
        self.buckets: dict[str, dict[str, KeyUpdate]] = {bucket: {} for bucket in KEY_BUCKETS}
        self.objects: dict[str, dict[str, bytes]] = {CODE_BUCKET: {}}
        self.servers: dict[str, deque[Mailbox[Question]]] = {}
        self.listeners: set[Mailbox[tuple[str, bytes]]] = set()
        self.watchers: set[Mailbox[KeyUpdate]] = set()
        self._revision = 0
        self._real_now = now
        self._ahead = timedelta()
        self._changed = asyncio.Event()
        self._key_ids = RecentIds()

    def now(self) -> datetime:
        return self._real_now() + self._ahead

    def advance(self, seconds: float) -> None:
        self._ahead += timedelta(seconds=seconds)
        self.changed()

    def changed(self) -> None:
        happened, self._changed = self._changed, asyncio.Event()
        happened.set()

    async def wait(self, until: datetime | None = None) -> None:
        """Wait for a change, or until the broker's time reaches `until`."""
        happened = self._changed
        wait_s = None if until is None else max(0.0, (until - self.now()).total_seconds())
        try:
            async with asyncio.timeout(wait_s):
                await happened.wait()
        except TimeoutError:
            return

    def store(self, message: Message) -> StreamPosition | None:
        """Store a message in its stream or bucket; return None if none has its subject."""
        for bucket in self.buckets:
            prefix = kv_subject(bucket, "")
            if message.subject.startswith(prefix):
                self._put_once(bucket, message.subject.removeprefix(prefix), message)
                return StreamPosition(f"KV_{bucket}", self._revision)
        for stream in self.streams.values():
            if stream.takes(message.subject):
                sequence = stream.store(message, self.now())
                self.changed()
                return StreamPosition(stream.spec.name, sequence)
        return None

    def _put_once(self, bucket: str, key: str, message: Message) -> None:
        if self._key_ids.is_new(message.id, self.now()):
            self.put(bucket, key, message.body)

    def put(self, bucket: str, key: str, body: bytes | None) -> None:
        """Set a key, or with None delete it."""
        self._revision += 1
        update = KeyUpdate(key=key, body=body, revision=self._revision)
        self.buckets[bucket][key] = update
        for watcher in self.watchers:
            if subject_matches(watcher.subject, kv_subject(bucket, key)):
                watcher.arrived.append(update)
        self.changed()

    def broadcast(self, subject: str, body: bytes) -> None:
        for listener in self.listeners:
            if subject_matches(listener.subject, subject):
                listener.arrived.append((subject, body))
        self.changed()

    def lose_memory_streams(self) -> None:
        """Simulate a restart of the server."""
        for stream in self.streams.values():
            if stream.spec.in_memory:
                stream.clear()
        self.changed()
