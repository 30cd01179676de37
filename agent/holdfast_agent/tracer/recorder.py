"""Client of a rank's flight recorders (`holdfast.trainer.hooks.flight_recorder`), which answer while Python hangs.

One records CPU operations; builds for CUDA have another for NCCL.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final, NamedTuple

from holdfast.engines.hang.dumps.flight_recorder import FlightRecorderError, read_flight_recorder
from holdfast.events.parts.traces import RankTrace

ANSWER_S = 0.5
ANSWER_BYTES_MAX = 32 << 20
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
    told: dict[str, RankTrace | None] = {}
    reasons: list[str] = []
    for recorder, answer in zip(
        (_HOST, _DEVICE),
        # A recorder that queries its device may block, which must not keep the other from answering.
        await asyncio.gather(*(_told(socket, name, rank) for name in (_HOST, _DEVICE)), return_exceptions=True),
        strict=True,
    ):
        if isinstance(answer, NoAnswer):
            reasons.append(str(answer))
        elif isinstance(answer, BaseException):
            raise answer
        else:
            told[recorder] = answer
    if not any(told.values()):
        raise NoAnswer(reasons[0] if reasons else "it has no flight recorder")
    return RecorderAnswer(told.get(_HOST), told.get(_DEVICE), "; ".join(reasons))


async def _told(socket: Path, recorder: str, rank: int) -> RankTrace | None:
    try:
        async with asyncio.timeout(ANSWER_S):
            body = await _asked(socket, recorder)
        if body is None:
            return None
        # Megabytes: decode them off the loop.
        (trace,) = await asyncio.to_thread(read_flight_recorder, body, f"rank_{rank}")
    except TimeoutError:
        raise NoAnswer(f"its flight recorder did not answer within {ANSWER_S:g} s") from None
    except (OSError, EOFError, asyncio.LimitOverrunError, FlightRecorderError, ValueError) as error:
        raise NoAnswer(f"its flight recorder cannot be asked: {error}") from error
    return trace


async def _asked(socket: Path, recorder: str) -> bytes | None:
    """Return the answer; None if this build has no such recorder."""
    reader, writer = await asyncio.open_unix_connection(str(socket), limit=ANSWER_BYTES_MAX)
    try:
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
