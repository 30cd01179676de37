"""Test transfers between nodes: timed, bounded, and harmless to who is sent nonsense."""

from __future__ import annotations

import asyncio
import struct
import time

import pytest

from holdfast_agent.slow_tests import transfers
from holdfast_agent.slow_tests.transfers import PIECE_BYTES, TransferServer, transfer_s


async def _sent(size: int) -> float:
    server = TransferServer("127.0.0.1")
    try:
        port = await server.port()
        assert await server.port() == port
        return await transfer_s("127.0.0.1", port, size, 10.0)
    finally:
        server.close()


@pytest.mark.parametrize("size", [0, 1, 1 << 18, (1 << 20) + 7])
def test_all_bytes_arrive_and_are_timed(size: int) -> None:
    assert 0 < asyncio.run(_sent(size)) < 10


async def test_only_so_many_transfers_are_taken_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfers, "TRANSFERS_MAX", 2)
    server = TransferServer("127.0.0.1")
    port = await server.port()
    writers = []
    for _ in range(2):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        # One piece is taken, and the next is awaited.
        writer.write(struct.pack("<Q", 2 * PIECE_BYTES) + bytes(PIECE_BYTES))
        assert await reader.read(1) == b"\1"
        writers.append(writer)
    with pytest.raises(ConnectionError):
        await transfer_s("127.0.0.1", port, 1, 10.0)
    for writer in writers:
        writer.close()
    server.close()


def test_a_receiver_that_is_too_slow_costs_no_more_than_the_limit_and_is_reckoned() -> None:
    async def slowly() -> tuple[float, float]:
        released = asyncio.Event()

        async def take_a_part(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readexactly(8 + 2 * PIECE_BYTES)
            writer.write(b"\1\1")
            await released.wait()
            writer.close()

        server = await asyncio.start_server(take_a_part, "127.0.0.1", 0)
        began = time.monotonic()
        try:
            reckoned_s = await transfer_s("127.0.0.1", server.sockets[0].getsockname()[1], 100 * PIECE_BYTES, 0.2)
            return reckoned_s, time.monotonic() - began
        finally:
            released.set()
            server.close()

    reckoned_s, took_s = asyncio.run(slowly())
    assert took_s < 5.0
    assert reckoned_s == pytest.approx(10.0)


def test_nobody_there_is_an_error_and_so_is_a_receiver_that_breaks_off() -> None:
    async def break_off() -> None:
        async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.close()

        server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        try:
            with pytest.raises(ConnectionError):
                await transfer_s("127.0.0.1", port, 1 << 22, 5.0)
        finally:
            server.close()
            await server.wait_closed()
        with pytest.raises(ConnectionError):
            await transfer_s("127.0.0.1", port, 10, 5.0)

    asyncio.run(break_off())


def test_more_bytes_than_anybody_sends_are_not_taken() -> None:
    async def boast() -> bytes:
        server = TransferServer("127.0.0.1")
        reader, writer = await asyncio.open_connection("127.0.0.1", await server.port())
        try:
            writer.write(struct.pack("<Q", 1 << 60))
            return await asyncio.wait_for(reader.read(), 5.0)
        finally:
            writer.close()
            server.close()

    assert asyncio.run(boast()) == b""
