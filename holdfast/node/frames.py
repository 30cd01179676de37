"""Framing of MessagePack messages on sockets, pipes and streams: the length of a message (u32, little-endian), then it.

`send` and `receive` are for blocking sockets, `read` for asyncio, `Frames` for bytes that arrive in pieces.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec

from holdfast.decoding import UNREADABLE

if TYPE_CHECKING:
    from asyncio import StreamReader

MESSAGE_BYTES_MAX = 256 * 1024 * 1024
PIECE_BYTES = 1024 * 1024
_LENGTH = struct.Struct("<I")
_DESCRIPTOR = struct.Struct("@i")
_ANCILLARY_BYTES = socket.CMSG_LEN(_DESCRIPTOR.size)

M = TypeVar("M")

_encode = msgspec.msgpack.Encoder().encode


class WireError(Exception):
    """The connection has ended, or the other side sent a message that the protocol does not have."""


class Frames(Generic[M]):
    """Messages of one protocol, cut out of a byte stream."""

    def __init__(self, decoder: msgspec.msgpack.Decoder[M], nbytes_max: int = MESSAGE_BYTES_MAX) -> None:
        self._decoder = decoder
        self._nbytes_max = nbytes_max
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[M]:
        """Yield the messages that `data` completes. Raises WireError: one is too long, or not one of the protocol."""
        self._buffer += data
        while len(self._buffer) >= _LENGTH.size:
            end = _LENGTH.size + _length(self._buffer, self._nbytes_max)
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[_LENGTH.size : end])
            del self._buffer[:end]
            yield decode(self._decoder, body)


def framed(message: msgspec.Struct) -> bytes:
    """Return the message as it is sent: its length, then its body."""
    body = _encode(message)
    return _LENGTH.pack(len(body)) + body


def decode(decoder: msgspec.msgpack.Decoder[M], body: bytes | bytearray) -> M:
    """Decode the body of one message. Raises WireError: it is not a message of the protocol."""
    try:
        return decoder.decode(body)
    except UNREADABLE as error:
        raise WireError(f"not a message of this protocol: {error}") from error


def send(link: socket.socket, message: msgspec.Struct, descriptor: int | None = None) -> None:
    """Send one message, and a file descriptor beside it. Raises WireError: the connection has ended."""
    data = framed(message)
    try:
        sent = link.send(data) if descriptor is None else socket.send_fds(link, [data], [descriptor])
        # No second call if all is sent: the other side may have its answer and have closed the connection by now.
        if sent < len(data):
            link.sendall(memoryview(data)[sent:])
    except OSError as error:
        raise lost(error) from error


def receive(
    link: socket.socket, decoder: msgspec.msgpack.Decoder[M], nbytes_max: int = MESSAGE_BYTES_MAX
) -> tuple[M, int | None]:
    """Receive the next message, and the file descriptor that came beside it. Raises WireError: the connection has
    ended, or the message is longer than `nbytes_max` or not one of the protocol.
    """
    descriptors: list[int] = []
    try:
        # Not by `socket.recv_fds`, which takes longer than the call itself: training waits for this in each save.
        head, ancillary, _, _ = link.recvmsg(_LENGTH.size, _ANCILLARY_BYTES)
        if ancillary:
            descriptors = [*_DESCRIPTOR.unpack(ancillary[0][2])]
        if len(head) < _LENGTH.size:
            rest = bytearray(_LENGTH.size - len(head))
            receive_into(link, memoryview(rest))
            head += rest
        length, body = _length(head, nbytes_max), bytearray()
        while len(body) < length:
            # As much again as has come: memory for what is only announced would be the sender's to spend.
            piece = bytearray(min(length - len(body), max(len(body), PIECE_BYTES)))
            receive_into(link, memoryview(piece))
            body = body + piece if body else piece
        return decode(decoder, body), descriptors[0] if descriptors else None
    except BaseException as error:
        for descriptor in descriptors:
            os.close(descriptor)
        if isinstance(error, OSError):
            raise lost(error) from error
        raise


def receive_into(link: socket.socket, view: memoryview) -> None:
    """Fill `view` with the next bytes of the connection; raise WireError if it ends before."""
    try:
        while view:
            # All of it in one call where the kernel can: a chunk would otherwise wake this thread some fifty times.
            count = link.recv_into(view, 0, socket.MSG_WAITALL)
            if not count:
                raise WireError("the connection has ended")
            view = view[count:]
    except OSError as error:
        raise lost(error) from error


async def read(reader: StreamReader, decoder: msgspec.msgpack.Decoder[M], nbytes_max: int = MESSAGE_BYTES_MAX) -> M:
    """Read the next message. Raises WireError: as in `receive`."""
    try:
        length = _length(await reader.readexactly(_LENGTH.size), nbytes_max)
        return decode(decoder, await reader.readexactly(length))
    except (OSError, EOFError) as error:
        raise WireError("the connection has ended") from error


def lost(error: OSError) -> WireError:
    """Return the WireError for a failed connection."""
    return WireError(f"the connection is lost: {error.strerror or error}")


def _length(head: bytes | bytearray, nbytes_max: int) -> int:
    (length,) = _LENGTH.unpack_from(head)
    if length > nbytes_max:
        raise WireError(f"a message of {length} bytes is over the limit of {nbytes_max}")
    return int(length)
