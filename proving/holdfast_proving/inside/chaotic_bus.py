"""The simulated bus under chaos: messages come late, twice, out of order; it goes away, and may forget what it stored.

What agents and the analyzer publish waits in their spools while the bus is away, and is published again if it was lost.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import partial
from random import Random
from typing import Any

from holdfast import events
from holdfast.bus import BusUnavailable, Message, StreamPosition, event_message
from holdfast.events import Event
from holdfast.orders.node import NodeOrder
from holdfast.subjects import kv_subject
from holdfast_proving.chaos.bus_disk import BusDisk
from holdfast_proving.chaos.chance import Chaos
from holdfast_proving.inside.bus import NODE_ORDERS, Delivery, ProvingBus
from holdfast_proving.scenario.scenario import ChaosPlan
from holdfast_proving.truth.generator import DAY_S
from holdfast_proving.world.agenda import Agenda

AWAY_S = (1.0, 60.0)
WATCHED_AGAIN_S = (1.0, 10.0)
"""An agent whose watch of its orders broke reads the newest one after this time."""
UNHANDLED_S = 3.0
"""Time after which a message that was not acknowledged is delivered again."""


class ChaoticDelivery(Delivery):
    """One delivery of a message: it is there as long as the bus has it."""

    __slots__ = ("id",)

    def __init__(self, id: str, subject: str, body: bytes, stored_at: datetime) -> None:
        super().__init__(subject, body, stored_at)
        self.id = id


class ChaoticBus(ProvingBus):
    def __init__(self, agenda: Agenda, noise: Random, plan: ChaosPlan, seed: int) -> None:
        super().__init__(agenda, noise)
        random = Random(f"{seed}/chaos")
        self.chaos = Chaos(random, plan.late, plan.late_s)
        self.on_return: list[Callable[[], None]] = []
        """Called when it is back."""
        self._plan = plan
        self._random = random
        self._disk = BusDisk()
        self._told: dict[str, Event] = {}
        """Events of agents and the analyzer, by their ids: their spools keep them."""
        self._waiting: list[Event] = []
        self._seen: set[str] = set()
        self._keys: dict[str, bytes] = {}
        self._ways_s: dict[Any, float] = {}
        self._expect_outage()

    # --- what services ask of it ------------------------------------------------------------------

    async def publish_all(self, messages: list[Message]) -> list[StreamPosition]:
        if self.connected_since is None:
            raise BusUnavailable("the bus is away")
        return [self._store(message) for message in messages]

    async def lost(self, position: StreamPosition, message_id: str) -> bool:
        return not self._disk.holds(message_id, position)

    async def get(self, _: str, key: str) -> bytes | None:
        return self._keys.get(key.removeprefix("node."))

    async def put(self, bucket: str, key: str, body: bytes) -> None:
        self._store(Message(id="", subject=kv_subject(bucket, key), body=body))

    def _store(self, message: Message) -> StreamPosition:
        if message.subject.startswith(NODE_ORDERS):
            return self._order(message.subject.removeprefix(NODE_ORDERS), message.body)
        if not message.subject.startswith("$KV."):
            return self._keep(message.id, message.subject, message.body)
        super()._publish(message)
        return StreamPosition("KV", 0)

    # --- messages ---------------------------------------------------------------------------------

    def tell(self, event: Event) -> None:
        self._note(event)
        self._told[event.id] = event
        self._publish_event(event)

    def _publish_event(self, event: Event) -> None:
        if self.connected_since is None:
            self._waiting.append(event)
            return
        message = event_message(event)
        self._keep(message.id, message.subject, message.body)

    def _note(self, event: Event) -> None:
        """Have the world's bookkeeping see an event once."""
        if event.id not in self._seen:
            self._seen.add(event.id)
            for watcher in self.watchers:
                watcher(event)

    def _keep(self, id: str, subject: str, body: bytes) -> StreamPosition:
        is_new = id not in self._disk
        position = self._disk.store(subject, id, self._agenda.seconds)
        if is_new:
            event = events.decode(body)
            self._note(event)
            for receive in self.receivers.get(type(event), ()):
                way = (event.source, event.event_class, receive)
                for _ in range(1 + self.chaos.happens(self._plan.repeated)):
                    at_s = self._agenda.seconds + self.chaos.delay_s()
                    if not self._plan.overtaking:
                        at_s = self._ways_s[way] = max(at_s, self._ways_s.get(way, 0.0))
                    delivery = ChaoticDelivery(id, subject, body, self._agenda.now())
                    self._agenda.at(at_s, partial(self._arrive, delivery, receive))
        return position

    def _arrive(self, delivery: ChaoticDelivery, receive: Callable[[Delivery], None]) -> None:
        if delivery.id not in self._disk:
            return
        if self.connected_since is not None:
            receive(delivery)
        if not delivery.is_settled:
            again = ChaoticDelivery(delivery.id, delivery.subject, delivery.body, delivery.stored_at)
            self._agenda.after(UNHANDLED_S, partial(self._arrive, again, receive))

    def _order(self, node: str, body: bytes) -> StreamPosition:
        position = self._disk.note_put(node, self._keys.get(node), self._agenda.seconds)
        self._keys[node] = body
        delay_s = self.chaos.delay_s()
        if self.chaos.happens(self._plan.late):
            delay_s += self._random.uniform(*WATCHED_AGAIN_S)

        def arrive() -> None:
            if self.connected_since is None:
                self._agenda.after(WATCHED_AGAIN_S[1], arrive)
            elif newest := self._keys.get(node):
                self.obey(node, NodeOrder.decode(newest))

        self._agenda.after(delay_s, arrive)
        return position

    # --- outages ----------------------------------------------------------------------------------

    def _expect_outage(self) -> None:
        if self._plan.outages_per_day:
            self._agenda.after(self._random.expovariate(self._plan.outages_per_day / DAY_S), self._go_away)

    def _go_away(self) -> None:
        self.connected_since = None
        forgotten, keys = self._disk.lose_since(self._agenda.seconds - self._random.uniform(0.0, self._plan.forgets_s))
        self._waiting += [self._told[id] for id in forgotten if id in self._told]
        for node, body in keys.items():
            if body is None:
                self._keys.pop(node, None)
            else:
                self._keys[node] = body
        self._agenda.after(self._random.uniform(*AWAY_S), self._come_back)

    def _come_back(self) -> None:
        self.connected_since = self._agenda.now()
        waiting, self._waiting = self._waiting, []
        for event in waiting:
            self._publish_event(event)
        for listener in self.on_return:
            listener()
        self._expect_outage()
