"""A connection between processes of a node: framed messages, and with some of them a file descriptor.

It never waits: bytes that the socket does not take are kept for the next `flush`.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

import msgspec

from holdfast.node.frames import Frames, WireError, framed

_READ_BYTES = 65_536
_DESCRIPTORS_MAX = 1
"""A message comes with one at most, and the kernel never joins those of two `send_fds`."""

M = TypeVar("M")


class _Piece:
    """Bytes to send. The descriptor goes with the first of them."""

    def __init__(self, descriptor: int | None) -> None:
        self.body = bytearray()
        self.descriptor = descriptor


class Link(Generic[M]):
    """One side of the connection, which receives messages of type M."""

    def __init__(self, connection: socket.socket, decoder: msgspec.msgpack.Decoder[M], nbytes_max: int) -> None:
        connection.setblocking(False)
        self.connection = connection
        self._frames = Frames(decoder, nbytes_max)
        self._outgoing: deque[_Piece] = deque()
        self._received: deque[int] = deque()

    @property
    def outgoing_bytes(self) -> int:
        return sum(len(piece.body) for piece in self._outgoing)

    def put(self, message: msgspec.Struct, descriptor: int | None = None) -> None:
        """Add a message to what `flush` sends. The descriptor is closed once it is sent, or with the link."""
        if descriptor is not None or not self._outgoing:
            self._outgoing.append(_Piece(descriptor))
        self._outgoing[-1].body += framed(message)

    def flush(self) -> None:
        """Send as much as the socket takes now. Raises OSError: the other side is gone."""
        while self._outgoing:
            piece = self._outgoing[0]
            try:
                sent = self._send(piece)
            except BlockingIOError:
                return
            del piece.body[:sent]
            if not piece.body:
                self._outgoing.popleft()

    def _send(self, piece: _Piece) -> int:
        if piece.descriptor is None:
            return self.connection.send(piece.body)
        sent = socket.send_fds(self.connection, [piece.body], [piece.descriptor])
        os.close(piece.descriptor)
        piece.descriptor = None
        return sent

    def receive(self) -> Iterator[M]:
        """Yield the messages that have arrived.

        Raises, at the first iteration, BlockingIOError: nothing has arrived; EOFError, OSError: the other side is gone.
        Raises WireError at a message that is not one of the protocol.
        """
        data, descriptors, _, _ = socket.recv_fds(
            self.connection, _READ_BYTES, _DESCRIPTORS_MAX, socket.MSG_CMSG_CLOEXEC
        )
        self._received += descriptors
        if not data:
            raise EOFError
        yield from self._frames.feed(data)

    def descriptor(self) -> int:
        """Return the descriptor of the message that `receive` has just yielded; the caller closes it. Call this for
        each message that comes with one: they wait in one queue. Raises WireError: there is none."""
        if not self._received:
            raise WireError("a message came without its file")
        return self._received.popleft()

    def close(self) -> None:
        """Close the connection, and the descriptors that were not taken."""
        unsent = [piece.descriptor for piece in self._outgoing if piece.descriptor is not None]
        for descriptor in (*unsent, *self._received):
            os.close(descriptor)
        self._outgoing.clear()
        self._received.clear()
        self.connection.close()
