"""Start and exit of processes that outlive the agent: the zygote and the vault."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from holdfast_agent.companions.environment import public_environment


async def start(module: str, log: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """Start `python -m module` in its own session; wait until it reports that it is ready, or exits."""
    process, ready = _spawn(("-P", "-m", module, *arguments), log)
    await end_of(ready)
    return process


async def ended(process: subprocess.Popen[bytes]) -> int:
    """Wait until the process has exited; return its exit code, or the negated signal number."""
    descriptor = os.pidfd_open(process.pid)
    try:
        await readable(descriptor)
    finally:
        os.close(descriptor)
    return process.wait()


async def end_of(ready: int) -> None:
    """Wait for the end of this pipe, and close it: its other end closes when a process is ready, and when it exits."""
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(ready, "rb", 0)
    )
    try:
        await reader.read()
    finally:
        transport.close()


async def readable(descriptor: int) -> None:
    """Wait until there is something to read; for a pidfd, until its process has exited."""
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)


def private_log(path: Path) -> BinaryIO:
    """Open a log to append to, closed to other users: ranks may pass through its directory."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    os.fchmod(descriptor, 0o600)
    return os.fdopen(descriptor, "ab")


def _spawn(arguments: Sequence[str], log: Path) -> tuple[subprocess.Popen[bytes], int]:
    """Start the process; return it and a pipe that ends when it is ready. asyncio would kill it with its transport."""
    ready, ready_in = os.pipe()
    with private_log(log) as output:
        try:
            process = subprocess.Popen(
                (sys.executable, *arguments, "--ready-fd", str(ready_in)),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=public_environment(os.environ),
                pass_fds=(ready_in,),
                start_new_session=True,
            )
        except BaseException:
            os.close(ready)
            raise
        finally:
            os.close(ready_in)
    return process, ready
