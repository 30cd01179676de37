"""A rank's flight recorder, asked over its socket (`holdfast.trainer.flight_recorder`): answered while Python hangs."""

from __future__ import annotations

import asyncio
from pathlib import Path

from holdfast.hangs.flight_recorder import FlightRecorderError, read_flight_recorder
from holdfast.hangs.observed import RankTrace

ANSWER_S = 0.5
ANSWER_BYTES_MAX = 32 << 20
_REQUEST = b"POST /handler/fr_trace_json HTTP/1.0\r\nHost: rank\r\nContent-Length: 0\r\n\r\n"


class NoAnswer(Exception):
    """The rank does not answer, as one that is stopped; the message says how that showed."""


async def recorder_of(socket: Path, rank: int) -> RankTrace:
    """What the flight recorder of a rank has.

    Raises:
        NoAnswer: nobody listens, nothing came within `ANSWER_S`, or it cannot be read.
    """
    try:
        async with asyncio.timeout(ANSWER_S):
            body = await _asked(socket)
        (trace,) = read_flight_recorder(body, f"rank_{rank}")
    except TimeoutError:
        raise NoAnswer(f"its flight recorder did not answer within {ANSWER_S:g} s") from None
    except (OSError, EOFError, asyncio.LimitOverrunError, FlightRecorderError, ValueError) as error:
        raise NoAnswer(f"its flight recorder cannot be asked: {error}") from error
    return trace


async def _asked(socket: Path) -> bytes:
    reader, writer = await asyncio.open_unix_connection(str(socket), limit=ANSWER_BYTES_MAX)
    try:
        writer.write(_REQUEST)
        await writer.drain()
        head = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in head.split(b"\r\n", 1)[0]:
            raise NoAnswer(f"its flight recorder answers {head.splitlines()[0].decode(errors='replace')}")
        return await _up_to_the_end(reader)
    finally:
        writer.close()


async def _up_to_the_end(reader: asyncio.StreamReader) -> bytes:
    # `read` gives what there is just now, or whatever comes without a bound.
    try:
        await reader.readexactly(ANSWER_BYTES_MAX + 1)
    except asyncio.IncompleteReadError as end:
        return end.partial
    raise NoAnswer(f"its flight recorder answers more than {ANSWER_BYTES_MAX} bytes")
