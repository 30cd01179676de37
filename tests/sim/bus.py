"""The simulated bus, as the shell, the relays and the repair of orders have it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING

from holdfast.bus import Message, StreamPosition, event_message
from holdfast.daemon.relay import Relay
from holdfast.events import Event
from holdfast.orders.node import NodeOrder
from holdfast.store.in_memory import MemoryStore
from holdfast.subjects import kv_subject
from holdfast_proving.chaos.bus_disk import BusDisk

if TYPE_CHECKING:
    from tests.sim.cluster import SimCluster


class SimBus:
    """What the shell, the relays and the repair of orders ask of the bus."""

    message_bytes_max = 1 << 20

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self._since = cluster.world.now()
        self.is_up = True
        self.disk = BusDisk()

    @property
    def connected_since(self) -> datetime | None:
        return self._since if self.is_up else None

    def come_back(self) -> None:
        self.is_up = True
        self._since = self._cluster.world.now()

    async def publish(self, message: Message) -> None:
        self._cluster.publish(message)

    async def publish_all(self, messages: list[Message]) -> list[StreamPosition]:
        return [self._cluster.publish(message) for message in messages]

    async def lost(self, position: StreamPosition, message_id: str) -> bool:
        return not self.disk.holds(message_id, position)

    async def get(self, _: str, key: str) -> bytes | None:
        return self._cluster.desired.get(key.removeprefix("node."))

    async def put(self, bucket: str, key: str, body: bytes) -> None:
        self._cluster.publish(Message(id="", subject=kv_subject(bucket, key), body=body))


class SimOutbox:
    """What a node or the analyzer said: its store survives it, and its relay publishes again what the bus lost."""

    def __init__(self, cluster: SimCluster, source: str, obeyed: Callable[[], NodeOrder | None]) -> None:
        self._world = cluster.world
        self._bus = cluster.bus
        self._store = MemoryStore(now=cluster.world.now)
        node = source.removeprefix("agent/") if source.startswith("agent/") else None
        now = cluster.world.now
        self._relay = Relay(self._store, cluster.bus, source=source, node=node, obeyed=obeyed, now=now)  # type: ignore[arg-type]

    def say(self, event: Event) -> None:
        self._store.database.unpublished[next(self._store.database.positions)] = event_message(event)
        self._world.after(0.0, self.relay)

    async def relay(self) -> None:
        if self._bus.is_up:
            await self._relay.publish_pending()
