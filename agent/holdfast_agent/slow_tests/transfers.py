"""Test transfers between nodes over the training network, timed by the sender.

A connection carries a length of eight bytes, then that many bytes in pieces. The receiver answers each piece with one
byte, so that an aborted transfer still gives a rate.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import time

from holdfast.orders.slow import TRANSFER_BYTES_MAX

_LENGTH = struct.Struct("<Q")
PIECE_BYTES = 1 << 16
IDLE_S = 10.0
TRANSFERS_MAX = 64
"""Most connections at a time. A test needs few, but any process in the network can connect to the port."""


class TransferServer:
    """Receiver of transfers at the node's address, on its own port, while it is open."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._server: asyncio.Server | None = None
        self._closing: asyncio.TimerHandle | None = None
        self._transfers = 0

    async def port(self) -> int:
        """Listen; return the port. Raises OSError, ValueError: not this node's address, or no descriptors are left."""
        if self._server is None:
            self._server = await asyncio.start_server(self._take, host=self._address, port=0, limit=4 * PIECE_BYTES)
        return int(self._server.sockets[0].getsockname()[1])

    def keep_open(self, duration_s: float) -> None:
        """Accept transfers for this long from now on, replacing an earlier limit."""
        self._forget_closing()
        self._closing = asyncio.get_running_loop().call_later(duration_s, self.close)

    def close(self) -> None:
        self._forget_closing()
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._transfers += 1
        try:
            if self._transfers <= TRANSFERS_MAX:
                await _receive(reader, writer)
        finally:
            self._transfers -= 1
            writer.close()

    def _forget_closing(self) -> None:
        if self._closing is not None:
            self._closing.cancel()
            self._closing = None


async def _receive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, EOFError):
        async with asyncio.timeout(IDLE_S):
            (left,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
            while 0 < left <= TRANSFER_BYTES_MAX:
                left -= len(await reader.readexactly(min(left, PIECE_BYTES)))
                writer.write(b"\1")
            await writer.drain()


async def transfer_s(address: str, port: int, size: int, limit_s: float) -> float:
    """Return the seconds that `size` bytes take to a node, from the first byte to the last acknowledgement;
    extrapolated if aborted after `limit_s`. Raises OSError (no connection, or bytes refused), ValueError (address).
    """
    pieces = -(-size // PIECE_BYTES)
    async with asyncio.timeout(limit_s):
        reader, writer = await asyncio.open_connection(address, port)
    began, arrived = time.monotonic(), 0
    sending = asyncio.create_task(_send(writer, size))
    try:
        async with asyncio.timeout(limit_s):
            while arrived < pieces:
                words = await reader.read(pieces - arrived)
                if not words:
                    raise ConnectionError(f"{address}:{port} did not accept the transfer")
                arrived += len(words)
    except TimeoutError:
        return limit_s * pieces / max(arrived, 1)
    finally:
        sending.cancel()
        # Bytes still in transit must not disturb the next transfer.
        writer.transport.abort()
        await asyncio.wait([sending])
    return time.monotonic() - began


async def _send(writer: asyncio.StreamWriter, size: int) -> None:
    piece = bytes(PIECE_BYTES)
    with contextlib.suppress(OSError):
        writer.write(_LENGTH.pack(size))
        for at in range(0, size, PIECE_BYTES):
            writer.write(piece[: size - at])
            await writer.drain()
