"""The lasting connection to NATS."""

from __future__ import annotations

import asyncio
import socket

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


async def test_a_publisher_is_ended_while_the_server_takes_nothing() -> None:
    async def take_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id": "test", "max_payload": 1048576}\r\n')
        await reader.readuntil(b"PING\r\n")
        writer.write(b"PONG\r\n")

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
    publishing.cancel()
    ended, _ = await asyncio.wait([publishing], timeout=10)
    assert ended and publishing.cancelled(), publishing
    await link.close()
    server.close()
