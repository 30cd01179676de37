"""The simulated bus: every message arrives once, some milliseconds later, in the order of its stream.

`chaotic_bus.py` is less kind.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import partial
from random import Random

from holdfast import events
from holdfast.bus import Message, StreamPosition, event_message
from holdfast.events import Event
from holdfast.events.base import EventClass
from holdfast.orders.backup import BackupOrder
from holdfast.orders.node import NodeOrder
from holdfast.orders.slow import SlowOrder
from holdfast.orders.trace import TraceOrder
from holdfast.subjects import kv_subject
from holdfast_proving.world.agenda import Agenda

NODE_ORDERS = "$KV.desired.node."
_JOB_ORDERS: dict[str, type[TraceOrder] | type[SlowOrder]] = {
    kv_subject(kind.bucket(), kind.key_of("")): kind for kind in (TraceOrder, SlowOrder)
}
_BACKUP_ORDERS = "$KV.desired.backup."
_KEYS = "$KV."
DELAY_S = (0.002, 0.01)


class Delivery:
    """One delivery of a message to one service."""

    __slots__ = ("body", "deliveries", "headers", "is_settled", "stored_at", "subject")

    def __init__(self, subject: str, body: bytes, stored_at: datetime) -> None:
        self.subject = subject
        self.body = body
        self.stored_at = stored_at
        self.headers: dict[str, str] = {}
        self.deliveries = 1
        self.is_settled = False

    async def ack(self) -> None:
        self.is_settled = True

    async def retry(self, delay_s: float) -> None:
        raise AssertionError(f"a message on {self.subject} could not be handled")

    async def drop(self) -> None:
        raise AssertionError(f"a message on {self.subject} was rejected")


class ProvingBus:
    """What the shell and its relay ask of the bus (`holdfast.bus.Bus`), and what the world asks of it."""

    message_bytes_max = 8 << 20

    def __init__(self, agenda: Agenda, noise: Random) -> None:
        self._agenda = agenda
        self._noise = noise
        self._published = 0
        self.held_until_s = 0.0
        """Until then no message of an agent arrives."""
        self._last_s: dict[tuple[bool, Callable[[Delivery], None]], float] = {}
        """When the newest message of a stream arrives at a receiver."""
        self.connected_since: datetime | None = agenda.now()
        self.watchers: list[Callable[[Event], None]] = []
        """Called at once for each event: the world's bookkeeping, no part of production."""
        self.receivers: dict[type[Event], list[Callable[[Delivery], None]]] = {}
        self.obey: Callable[[str, NodeOrder], None] = lambda node, order: None
        self.answer: Callable[[TraceOrder | SlowOrder], None] = lambda order: None
        """Called for orders of the analyzer to all nodes of a job."""
        self.back_up: Callable[[BackupOrder], None] = lambda order: None

    async def publish(self, message: Message) -> None:
        await self.publish_all([message])

    async def publish_all(self, messages: list[Message]) -> list[StreamPosition]:
        for message in messages:
            self._publish(message)
        # No stream that a relay compares: nothing is ever lost here.
        return [StreamPosition("proving", self._published)] * len(messages)

    async def lost(self, position: StreamPosition, message_id: str) -> bool:
        return False

    def tell(self, event: Event) -> None:
        """Publish an event of an agent or of the analyzer."""
        self._deliver(event, event_message(event))

    def _publish(self, message: Message) -> None:
        if message.subject.startswith(NODE_ORDERS):
            node, order = message.subject.removeprefix(NODE_ORDERS), NodeOrder.decode(message.body)
            self._agenda.after(self._noise.uniform(*DELAY_S), partial(self.obey, node, order))
        elif message.subject.startswith(_BACKUP_ORDERS):
            self._agenda.after(self._noise.uniform(*DELAY_S), partial(self.back_up, BackupOrder.decode(message.body)))
        elif not message.subject.startswith(_KEYS):
            self._deliver(events.decode(message.body), message)
        elif kind := next((kind for start, kind in _JOB_ORDERS.items() if message.subject.startswith(start)), None):
            asked = kind.decode(message.body)
            self._agenda.after(self._noise.uniform(*DELAY_S), lambda: self.answer(asked))

    def _deliver(self, event: Event, message: Message) -> None:
        self._published += 1
        for watcher in self.watchers:
            watcher(event)
        for receive in self.receivers.get(type(event), ()):
            delivery = Delivery(message.subject, message.body, self._agenda.now())
            # A consumer receives a stream in order, and two streams in any.
            queue = (event.event_class is EventClass.EVIDENCE, receive)
            at_s = max(self._agenda.seconds + self._noise.uniform(*DELAY_S), self._last_s.get(queue, 0.0))
            if event.event_class is EventClass.EVIDENCE:
                at_s = max(at_s, self.held_until_s)
            self._last_s[queue] = at_s
            self._agenda.at(at_s, partial(receive, delivery))
