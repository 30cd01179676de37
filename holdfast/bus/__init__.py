"""The bus between processes. Two implementations keep the same contract: NATS, and memory for tests and simulation.

Delivery is at least once: a consumer may see a message again, in another order, or late, and must change
nothing by it (see `holdfast.store`). A publish that returns has been stored by the bus.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from datetime import datetime
from typing import Protocol

import msgspec

from holdfast.events import Event, encode
from holdfast.subjects import event_subject


class BusError(Exception):
    """The bus cannot do what was asked now; the message names the cause."""


class BusUnavailable(BusError):
    """No connection to the bus, or no answer in time. Try again later."""


class NoResponder(BusError):
    """No process answers requests on this subject."""


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """Something to publish. `id` lets the bus drop a repeated publish of the same message."""

    id: str
    subject: str
    body: bytes
    headers: dict[str, str] = {}

    @property
    def wire_bytes(self) -> int:
        """Size that counts against `Bus.message_bytes_max`."""
        return wire_bytes(self.body, {"Nats-Msg-Id": self.id, **self.headers})


def wire_bytes(body: bytes, headers: dict[str, str] | None) -> int:
    """Return the size that counts against the `max_payload` of NATS: body and encoded headers."""
    if not headers:
        return len(body)
    return len(body) + 14 + sum(len(key) + len(value.encode()) + 4 for key, value in headers.items())


class Delivery(Protocol):
    """A message received from a stream, to be settled by exactly one of `ack` (handled), `retry` (deliver it again
    after `delay_s`) and `drop` (give it up).
    """

    @property
    def subject(self) -> str: ...
    @property
    def body(self) -> bytes: ...
    @property
    def headers(self) -> dict[str, str]: ...
    @property
    def deliveries(self) -> int:
        """Number of deliveries of this message to this consumer, this one included."""
        ...

    @property
    def stored_at(self) -> datetime:
        """Time at which the stream stored the message."""
        ...

    async def ack(self) -> None: ...

    async def retry(self, delay_s: float) -> None: ...

    async def drop(self) -> None: ...


class KeyUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """A key's new value; `body` is None when the key was deleted."""

    key: str
    body: bytes | None
    revision: int


class StreamPosition(msgspec.Struct, frozen=True):
    """The place of a message in the stream (or key bucket) that stored it."""

    stream: str
    sequence: int


class StreamState(msgspec.Struct, frozen=True, kw_only=True):
    """The number of messages in a stream, and the newest of them."""

    messages: int
    newest: Message | None = None
    newest_at: datetime | None = None


class Bus(Protocol):
    """The operations of the bus.

    Raises, where a method waits for an answer:
        BusUnavailable: no connection, or no answer in time; what was to be stored perhaps is: store the same again.
        BusError: the bus refuses for good, for example because there is no such stream.
    """

    async def publish(self, message: Message) -> None:
        """Store one message in its stream (or key bucket)."""
        ...

    async def publish_all(self, messages: list[Message]) -> list[StreamPosition]:
        """Store many messages, in order, and return their positions. After an error some perhaps are not stored.

        A message that the bus has already keeps its position.
        """
        ...

    async def lost(self, position: StreamPosition, message_id: str) -> bool:
        """Return True if the bus lost this message after it had stored it: another message has its position, or none.

        A message that expired is not lost.
        """
        ...

    def consume(self, stream: str, consumer: str, filters: list[str]) -> AsyncIterator[Delivery]:
        """Receive from a durable consumer, made when absent, from the stream's beginning; survives lost connections."""
        ...

    async def last_settled(self, stream: str, consumer: str) -> Message | None:
        """Return the message up to which a durable consumer has settled all; None if it settled none, or it expired."""
        ...

    async def start_over(self, stream: str, consumer: str) -> None:
        """Forget what a durable consumer has settled: it receives the whole stream again."""
        ...

    async def stream_state(self, stream: str) -> StreamState:
        """Return the number of messages in a stream and its newest message."""
        ...

    async def put(self, bucket: str, key: str, body: bytes) -> None: ...

    async def get(self, bucket: str, key: str) -> bytes | None:
        """Return a key's value; None if it has none."""
        ...

    def watch(self, bucket: str, key: str) -> AsyncIterator[KeyUpdate]:
        """Yield a key's value, then each new one; after a lost connection, the newest value again."""
        ...

    async def put_objects(self, bucket: str, objects: Mapping[str, bytes]) -> None:
        """Store values of any size under their names; earlier values are replaced."""
        ...

    async def get_objects(self, bucket: str, names: Collection[str]) -> dict[str, bytes]:
        """Return the complete objects of these names; the others are left out. An object may expire at any time."""
        ...

    async def broadcast(self, subject: str, body: bytes) -> None:
        """Send to all present listeners; nothing is stored, and while disconnected nothing is sent."""
        ...

    def listen(self, subject: str) -> AsyncIterator[tuple[str, bytes]]:
        """Yield (subject, body) of each broadcast on `subject` (wildcards allowed) from now on."""
        ...

    async def request(self, subject: str, body: bytes, timeout_s: float) -> bytes:
        """Ask and wait for one answer; raises NoResponder if no process serves this subject."""
        ...

    async def serve(self, subject: str, handler: Callable[[bytes], Awaitable[bytes]]) -> None:
        """Answer requests on `subject` (wildcards allowed) until cancelled, one at a time, each subject in its turn.

        An exception of `handler` is raised here.
        """
        ...

    @property
    def message_bytes_max(self) -> int:
        """Largest size of a message, body and headers together."""
        ...

    @property
    def connected_since(self) -> datetime | None:
        """Start of the present connection; None while there is none."""
        ...

    async def close(self) -> None:
        """Flush what was published and disconnect."""
        ...


def event_message(event: Event) -> Message:
    """Return an event as a message: JSON body, CloudEvents 1.0 attributes (NATS binding) and id as headers."""
    headers = {
        "Nats-Msg-Id": event.id,
        "ce-specversion": "1.0",
        "ce-id": event.id,
        "ce-type": f"holdfast.{event.event_class}.{event.type}",
        "ce-source": f"/holdfast/{event.source}",
        "ce-time": event.at.isoformat().replace("+00:00", "Z"),
        "content-type": "application/json",
        "traceparent": traceparent(event),
    }
    return Message(id=event.id, subject=event_subject(event), body=encode(event), headers=headers)


def traceparent(event: Event) -> str:
    """Return the W3C trace context: the trace is the incident (or the first cause), the span is the event itself."""
    trace = (event.incident or event.cause or event.id).replace("-", "")
    return f"00-{trace}-{event.id.replace('-', '')[-16:]}-01"
