"""The lasting connection to NATS."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import NamedTuple

import pytest
from nats.aio.client import DEFAULT_PENDING_SIZE

from holdfast.bus.link import Link
from holdfast.bus.nats import connect


async def test_a_connection_that_is_being_made_is_given_up_at_any_moment() -> None:
    """An attempt takes some turns of the loop, and in half of them nothing of it passed on that its task was to end."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        url = f"nats://127.0.0.1:{silent.getsockname()[1]}"
        for turns in range(40):
            connecting = asyncio.create_task(connect(url, "test"))
            for _ in range(turns):
                await asyncio.sleep(0)
            connecting.cancel()
            ended, _ = await asyncio.wait([connecting], timeout=10)
            assert ended, f"given up after {turns} turns of the loop, it goes on"
            assert connecting.cancelled()


class Stuffed(NamedTuple):
    """A link to a server that takes nothing, a task that publishes on it without end, and the server's side of it."""

    link: Link
    publishing: asyncio.Task[None]
    connection: asyncio.StreamWriter


@pytest.fixture
async def stuffed() -> AsyncIterator[Stuffed]:
    connections: list[asyncio.StreamWriter] = []

    async def take_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id": "test", "max_payload": 1048576}\r\n')
        await reader.readuntil(b"PING\r\n")
        writer.write(b"PONG\r\n")
        connections.append(writer)

    async def publish() -> None:
        while True:
            await link.send("much", bytes(1 << 19))

    server = await asyncio.start_server(take_nothing, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    link = await Link.open(f"nats://{host}:{port}", "test")
    publishing = asyncio.create_task(publish())
    async with asyncio.timeout(30):
        while link._client.pending_data_size <= DEFAULT_PENDING_SIZE:  # noqa: ASYNC110 - nats-py tells nothing
            await asyncio.sleep(0.01)
    yield Stuffed(link, publishing, connections[0])
    publishing.cancel()
    connections[0].transport.abort()
    await asyncio.wait([publishing])
    async with asyncio.timeout(10):
        await link.ended.wait()
    await link.close()
    server.close()


async def test_a_publisher_is_ended_while_the_server_takes_nothing(stuffed: Stuffed) -> None:
    stuffed.publishing.cancel()
    ended, _ = await asyncio.wait([stuffed.publishing], timeout=10)
    assert ended and stuffed.publishing.cancelled()


async def test_the_end_of_a_connection_is_noticed_at_once_with_something_unsent(stuffed: Stuffed) -> None:
    stuffed.connection.transport.abort()
    async with asyncio.timeout(10):
        await stuffed.link.ended.wait()
