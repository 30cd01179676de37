"""Starting a process that works beside the agent and outlives it: the zygote, the vault."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from holdfast_agent.environment import public_environment


async def start(module: str, log: Path, *arguments: str) -> asyncio.subprocess.Process:
    """Start `python -m module` in a session of its own and wait until it says that it is ready, or ends."""
    ready, ready_in = os.pipe()
    with log.open("ab") as output:
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-P", "-m", module, *arguments, "--ready-fd", str(ready_in)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=public_environment(os.environ),
                pass_fds=(ready_in,),
                start_new_session=True,
            )
        finally:
            os.close(ready_in)
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(ready, "rb", 0)
    )
    try:
        # The other end closes when it is ready, and when it dies.
        await reader.read()
    finally:
        transport.close()
    return process
