"""A bus for the relay of a service that may die between publishing and noting it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Protocol

from holdfast.bus import BusUnavailable, Message, StreamPosition


class RelayBus(Protocol):
    """What a relay asks of the bus."""

    message_bytes_max: int

    @property
    def connected_since(self) -> datetime | None: ...

    async def publish(self, message: Message) -> None: ...

    async def publish_all(self, messages: list[Message]) -> list[StreamPosition]: ...

    async def lost(self, position: StreamPosition, message_id: str) -> bool: ...


class PublishingBus:
    """The bus as a service's relay has it: the service may die between publishing and noting it, and publish again."""

    def __init__(self, bus: RelayBus, dies: Callable[[], Awaitable[bool]]) -> None:
        self._bus = bus
        self._dies = dies
        self.message_bytes_max = bus.message_bytes_max
        self.publish = bus.publish
        self.lost = bus.lost

    @property
    def connected_since(self) -> datetime | None:
        return self._bus.connected_since

    async def publish_all(self, messages: list[Message]) -> list[StreamPosition]:
        stored = await self._bus.publish_all(messages)
        if await self._dies():
            raise BusUnavailable("the service died before it noted what it had published")
        return stored
