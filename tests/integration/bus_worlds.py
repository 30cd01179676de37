"""Two worlds for the same tests: the bus in memory, and NATS in a server that the test may kill."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Protocol, TypeVar

import msgspec
from servers import NatsServer

from holdfast.bus import Bus, Delivery, Message
from holdfast.bus.in_memory import MemoryBroker, MemoryBus
from holdfast.bus.link import Link
from holdfast.bus.nats import NatsBus, connect
from holdfast.fresh_ids import uuid7

T = TypeVar("T")
WITHIN_S = 40.0


class World(Protocol):
    """A bus server and its clients."""

    async def client(self, name: str) -> Bus: ...

    async def pass_time(self, seconds: float) -> None: ...

    async def until_settled(self, consumer: str, count: int) -> None:
        """Wait until the server has heard what became of the first `count` deliveries of EVIDENCE to a consumer."""

    async def stop(self) -> None:
        """The server dies; returns when every client has noticed."""

    async def start(self) -> None:
        """The server is back; returns when every client has noticed."""

    async def leave(self) -> None:
        """Close all clients."""


class MemoryWorld:
    """The bus in memory, with a clock that only `pass_time` moves."""

    def __init__(self) -> None:
        self.broker = MemoryBroker(now=lambda: datetime(2026, 1, 1, tzinfo=UTC))
        self.clients: list[MemoryBus] = []

    async def client(self, name: str) -> MemoryBus:
        self.clients.append(self.broker.client(name))
        return self.clients[-1]

    async def pass_time(self, seconds: float) -> None:
        self.broker.advance(seconds)

    async def until_settled(self, consumer: str, count: int) -> None:
        """It is as soon as it is said."""

    async def stop(self) -> None:
        for client in self.clients:
            client.disconnect()

    async def start(self) -> None:
        self.broker.lose_memory_streams()
        for client in self.clients:
            client.reconnect()

    async def leave(self) -> None:
        for client in self.clients:
            await client.close()


class NatsWorld:
    """A real nats-server."""

    def __init__(self, server: NatsServer) -> None:
        self.server = server
        self.clients: list[NatsBus] = []

    async def client(self, name: str) -> NatsBus:
        self.clients.append(await connect(self.server.url, name, timeout_s=WITHIN_S))
        return self.clients[-1]

    async def pass_time(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def until_settled(self, consumer: str, count: int) -> None:
        """The server puts it aside to look at later: its answer to what was asked after that says nothing of it."""
        link = await Link.open(self.server.url, "look")
        try:
            async with asyncio.timeout(WITHIN_S):
                while (await _settled(link, consumer)) < count:  # noqa: ASYNC110 - the server sends no event
                    await asyncio.sleep(0.01)
        finally:
            await link.close()

    async def stop(self) -> None:
        self.server.kill()
        for client in self.clients:
            await until_disconnected(client)

    async def start(self) -> None:
        await self.server.start()
        for client in self.clients:
            await until_connected(client)

    async def leave(self) -> None:
        for client in self.clients:
            await client.close()


async def _settled(link: Link, consumer: str) -> int:
    answer = await link.answer(f"$JS.API.CONSUMER.INFO.EVIDENCE.{consumer}", b"")
    return int(msgspec.json.decode(answer.data)["ack_floor"]["consumer_seq"])


async def until_connected(bus: Bus) -> None:
    async with asyncio.timeout(WITHIN_S):
        while bus.connected_since is None:  # noqa: ASYNC110 - the contract offers no event for it
            await asyncio.sleep(0.01)


async def until_disconnected(bus: Bus) -> None:
    async with asyncio.timeout(WITHIN_S):
        while bus.connected_since is not None:  # noqa: ASYNC110 - the contract offers no event for it
            await asyncio.sleep(0.01)


async def take(source: AsyncIterator[T], count: int) -> list[T]:
    """The next `count` items."""
    async with asyncio.timeout(WITHIN_S):
        return [await anext(source) for _ in range(count)]


async def take_one(source: AsyncIterator[T]) -> T:
    """The next item."""
    return (await take(source, 1))[0]


async def settle(deliveries: list[Delivery]) -> list[bytes]:
    """Acknowledge all; their bodies."""
    for delivery in deliveries:
        await delivery.ack()
    return [delivery.body for delivery in deliveries]


def unique(stem: str) -> str:
    """A name that no other test uses."""
    return f"{stem}-{uuid7()}"


def message(subject: str, body: bytes, message_id: str | None = None) -> Message:
    return Message(id=message_id or uuid7(), subject=subject, body=body)
