"""Nonsense on a connection is an error of this protocol, and leaves nothing open."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import threading
import tracemalloc

import msgspec
import pytest

from holdfast.node.frames import MESSAGE_BYTES_MAX, PIECE_BYTES, WireError, read, receive, send
from holdfast.node.vault.messages import Refused, answers, requests

NO_TEXT = msgspec.msgpack.encode({"type": "join", "ledger": "??"}).replace(b"??", b"\xff\xfe")
NO_TEXT_BACK = msgspec.msgpack.encode({"type": "refused", "reason": "??"}).replace(b"??", b"\xff\xfe")
TOO_DEEP = b"\x82\xa4type\xa4join\xa1x" + b"\x91" * 100_000
NO_MESSAGE = b"\x93\x01\x02\x03"


def framed(body: bytes) -> bytes:
    return struct.pack("<I", len(body)) + body


@pytest.mark.parametrize("body", [NO_TEXT, TOO_DEEP, NO_MESSAGE])
def test_nonsense_is_refused_and_the_descriptor_beside_it_closed(body: bytes) -> None:
    ours, theirs = socket.socketpair()
    beside, kept = os.pipe()
    with ours, theirs:
        socket.send_fds(theirs, [framed(body)], [kept])
        os.close(kept)
        with pytest.raises(WireError, match="not a message of this protocol"):
            receive(ours, requests)
        # The end of the pipe is seen once nobody has its other end any more.
        os.set_blocking(beside, False)
        assert os.read(beside, 1) == b""
        os.close(beside)


def test_a_message_that_is_only_announced_takes_no_memory() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            theirs.sendall(struct.pack("<I", MESSAGE_BYTES_MAX) + b"x" * 100)
        tracemalloc.start()
        with pytest.raises(WireError, match="has ended"):
            receive(ours, requests)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 10 * PIECE_BYTES


def test_a_long_message_arrives_whole() -> None:
    ours, theirs = socket.socketpair()
    wanted = Refused(reason="x" * (5 * PIECE_BYTES + 7))
    with ours, theirs:
        sending = threading.Thread(target=send, args=(theirs, wanted))
        sending.start()
        assert receive(ours, answers) == (wanted, None)
        sending.join()


@pytest.mark.parametrize("body", [NO_TEXT_BACK, NO_MESSAGE])
async def test_nonsense_is_refused_by_those_who_wait_for_many_things(body: bytes) -> None:
    reader = asyncio.StreamReader()
    reader.feed_data(framed(body))
    with pytest.raises(WireError, match="not a message of this protocol"):
        await read(reader, answers)
