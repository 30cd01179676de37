"""Restart of a nats-server that refuses writes although its disk has space again.

After a failed write nats-server refuses all further writes to that stream until it is started again. Its monitor
reports that; publishers only see that their messages are not acknowledged.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

from holdfast.embedded.processes.children import Child
from holdfast.embedded.servers.nats_monitor import write_error

CHECK_EVERY_S = 2.0
FREE_BYTES_MIN = 16 << 20
"""Free space that a restart waits for: with less the next write fails again."""


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
