"""Client of a rank's flight recorders (`holdfast.trainer.hooks.flight_recorder`), which answer while Python hangs.

One records CPU operations; builds for CUDA have another for NCCL.
"""

from __future__ import annotations

import asyncio
import os
import socket as sockets
import struct
from pathlib import Path
from typing import Final, NamedTuple

from holdfast.engines.hang.dumps.flight_recorder import FlightRecorderError, read_flight_recorder
from holdfast.events.parts.traces import RankTrace

ANSWER_S = 0.5
ANSWER_BYTES_MAX = 32 << 20
OBJECTS_MAX, LISTS_MAX = 50_000, 1_000_000
"""Limits of an answer, which needs memory in this process: a script may answer in its recorder's place."""
_HOST: Final = "fr_trace_json"
_DEVICE: Final = "dump_nccl_trace_json"


class NoAnswer(Exception):
    """The rank does not answer, as if stopped; the message gives the symptom."""


class RecorderAnswer(NamedTuple):
    """Content of a rank's recorders. None: no such recorder. `unread` names those that did not answer."""

    host: RankTrace | None
    device: RankTrace | None
    unread: str = ""


async def recorder_of(socket: Path, rank: int) -> RecorderAnswer:
    """Return what a rank's recorders hold. Raises NoAnswer: no listener, no answer in time, or an unreadable one."""
    answers: dict[str, RankTrace | None] = {}
    reasons: list[str] = []
    for recorder, answer in zip(
        (_HOST, _DEVICE),
        # A recorder that queries its device may block, which must not keep the other from answering.
        await asyncio.gather(*(_answer_of(socket, name, rank) for name in (_HOST, _DEVICE)), return_exceptions=True),
        strict=True,
    ):
        if isinstance(answer, NoAnswer):
            reasons.append(str(answer))
        elif isinstance(answer, BaseException):
            raise answer
        else:
            answers[recorder] = answer
    if not any(answers.values()):
        raise NoAnswer(reasons[0] if reasons else "it has no flight recorder")
    return RecorderAnswer(answers.get(_HOST), answers.get(_DEVICE), "; ".join(reasons))


async def _answer_of(socket: Path, recorder: str, rank: int) -> RankTrace | None:
    try:
        async with asyncio.timeout(ANSWER_S):
            body = await _asked(socket, recorder)
        if body is None:
            return None
        _require_plain(body)
        # Megabytes: decode them off the loop.
        (trace,) = await asyncio.to_thread(read_flight_recorder, body, f"rank_{rank}")
    except TimeoutError:
        raise NoAnswer(f"its flight recorder did not answer within {ANSWER_S:g} s") from None
    except (OSError, EOFError, asyncio.LimitOverrunError, FlightRecorderError, ValueError) as error:
        raise NoAnswer(f"its flight recorder cannot be asked: {error}") from error
    return trace


def _require_plain(body: bytes) -> None:
    """Raise NoAnswer if the answer is packed or pickled, or would need more memory than a recorder's does."""
    if not body.lstrip()[:1] == b"{":
        raise NoAnswer("its flight recorder answers no JSON object")
    if body.count(b"{") > OBJECTS_MAX or body.count(b"[") > LISTS_MAX:
        raise NoAnswer(f"its flight recorder answers more than {OBJECTS_MAX} objects or {LISTS_MAX} lists")


def _require_own(socket: Path, writer: asyncio.StreamWriter) -> None:
    """Raise NoAnswer if another user answers: the rank may have put a link to a socket of the machine there."""
    link: sockets.socket = writer.get_extra_info("socket")
    _, uid, _ = struct.unpack("3i", link.getsockopt(sockets.SOL_SOCKET, sockets.SO_PEERCRED, struct.calcsize("3i")))
    if uid != os.stat(socket.parent).st_uid:
        raise NoAnswer("another user answers in place of its flight recorder")


async def _asked(socket: Path, recorder: str) -> bytes | None:
    """Return the answer; None if this build has no such recorder."""
    reader, writer = await asyncio.open_unix_connection(str(socket), limit=ANSWER_BYTES_MAX)
    try:
        _require_own(socket, writer)
        writer.write(f"POST /handler/{recorder} HTTP/1.0\r\nHost: rank\r\nContent-Length: 0\r\n\r\n".encode())
        await writer.drain()
        head = await reader.readuntil(b"\r\n\r\n")
        status = head.split(b"\r\n", 1)[0]
        if b" 404 " in status:
            return None
        if b" 200 " not in status:
            raise NoAnswer(f"its flight recorder answers {status.decode(errors='replace')}")
        return await _up_to_the_end(reader)
    finally:
        writer.close()


async def _up_to_the_end(reader: asyncio.StreamReader) -> bytes:
    # `read` returns the available bytes, or reads without a limit.
    try:
        await reader.readexactly(ANSWER_BYTES_MAX + 1)
    except asyncio.IncompleteReadError as end:
        return end.partial
    raise NoAnswer(f"its flight recorder answers more than {ANSWER_BYTES_MAX} bytes")
