"""Restart of a nats-server that refuses writes although its disk has space again.

After a failed write nats-server refuses all further writes to that stream until it is started again. Its monitor
reports that; publishers only see that their messages are not acknowledged.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from holdfast.embedded.processes.children import Child

CHECK_EVERY_S = 2.0
FREE_BYTES_MIN = 16 << 20
"""Free space that a restart waits for: with less the next write fails again."""
_ANSWER_WITHIN_S = 2.0
_WRITE_ERROR = "write error"


class _Health(msgspec.Struct, frozen=True):
    status: str = ""
    error: str = ""


async def write_error(monitor_url: str) -> str | None:
    """Return the write error that a nats-server reports; None if it reports none, or its monitor does not answer."""
    address = urlsplit(monitor_url)
    try:
        async with asyncio.timeout(_ANSWER_WITHIN_S):
            reader, writer = await asyncio.open_connection(address.hostname, address.port)
            try:
                writer.write(b"GET /healthz HTTP/1.0\r\n\r\n")
                answer = await reader.read()
            finally:
                writer.close()
        health = msgspec.json.decode(answer.partition(b"\r\n\r\n")[2], type=_Health)
    except (OSError, TimeoutError, msgspec.DecodeError):
        return None
    return health.error if _WRITE_ERROR in health.error else None


async def restart_after_write_errors(
    nats: Child, monitor_url: str, directory: Path, report: Callable[[str], None]
) -> None:
    """Restart nats-server when it reports a write error and the disk of `directory` has space; runs until cancelled."""
    reported = False
    while True:
        await asyncio.sleep(CHECK_EVERY_S)
        process = nats.record
        error = await write_error(monitor_url)
        if error is None or nats.record != process:
            reported = False
        elif shutil.disk_usage(directory).free >= FREE_BYTES_MIN:
            report(f"nats refuses writes ({error}), and its disk has space: restarting it")
            nats.end_process()
        elif not reported:
            reported = True
            report(f"nats refuses writes ({error}): free space on the disk of {directory}")
