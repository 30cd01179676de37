"""Chunks of a shard on a connection between vaults: sent from a segment's memory and received into one."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import xxhash

from holdfast.node.frames import lost, receive_into, send
from holdfast.node.vault.seals import CHUNK_BYTES, chunk_bytes
from holdfast_vault.peers.peer_messages import ChunkHeader
from holdfast_vault.peers.tls_link import TlsLink
from holdfast_vault.shelf.segments import Segment

SPARE_BUFFERS_MAX = 8

_spare_buffers: list[bytearray] = []


def send_chunk(link: socket.socket, segment: Segment, number: int) -> None:
    """Send a chunk of a segment; raise WireError if the connection ends."""
    start, size = number * CHUNK_BYTES, chunk_bytes(segment.nbytes, number)
    send(link, ChunkHeader(number=number, nbytes=size))
    try:
        if isinstance(link, TlsLink):
            link.sendall(segment.memory[start : start + size].data)
            return
        end = start + size
        while start < end:
            start += os.sendfile(link.fileno(), segment.descriptor, start, end - start)
    except OSError as error:
        raise lost(error) from error


def receive_chunk(link: socket.socket, chunk: ChunkHeader, segment: Segment, expected: int) -> bool:
    """Receive the bytes after a `ChunkHeader` into place; False: wrong hash. Raises OSError (no memory), WireError."""
    if not segment.is_fresh:
        start = chunk.number * CHUNK_BYTES
        data = segment.memory[start : start + chunk.nbytes].data
        receive_into(link, data)
        return xxhash.xxh3_64_intdigest(data) == expected
    # A page that is written from memory in the cache is allocated and filled at once, not filled with zeroes first.
    with _spare_buffer(chunk.nbytes) as data:
        receive_into(link, data)
        is_whole = xxhash.xxh3_64_intdigest(data) == expected
        if is_whole:
            segment.put(chunk.number, data)
        return is_whole


@contextmanager
def _spare_buffer(nbytes: int) -> Iterator[memoryview]:
    """Yield a buffer, a recently used one if there is any."""
    try:
        buffer = _spare_buffers.pop()
    except IndexError:
        buffer = bytearray(CHUNK_BYTES)
    yield memoryview(buffer)[:nbytes]
    if len(_spare_buffers) < SPARE_BUFFERS_MAX:
        _spare_buffers.append(buffer)
