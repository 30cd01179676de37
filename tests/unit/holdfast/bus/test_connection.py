"""The lasting connection to NATS."""

from __future__ import annotations

import asyncio
import socket

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
