"""Files of /proc that wait for a process's memory lock.

A process stuck in the kernel may hold it without end: each file is read in its own thread, with a short wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from pathlib import Path

import msgspec

WAIT_S = 0.3
_COMMAND_CHARS_MAX = 200


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """Command line of a process, and whether it contains a Python interpreter (None if unknown)."""

    command: str = ""
    is_python: bool = True


_read_now: set[int] = set()
"""Processes with a reading thread; no second one is started beside one that is stuck."""


async def program_of(pid: int) -> Program:
    """Return the program of a process; an empty one if it is not readable within `WAIT_S`."""
    if pid in _read_now:
        return Program()
    loop = asyncio.get_running_loop()
    found: asyncio.Future[Program] = loop.create_future()

    def read() -> None:
        try:
            program = _read(pid)
        finally:
            _read_now.discard(pid)
        # The loop may be closed by now.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(_settle, found, program)

    _read_now.add(pid)
    threading.Thread(target=read, name=f"program of {pid}", daemon=True).start()
    try:
        async with asyncio.timeout(WAIT_S):
            return await found
    except TimeoutError:
        return Program()


def _settle(found: asyncio.Future[Program], program: Program) -> None:
    if not found.done():
        found.set_result(program)


def _read(pid: int) -> Program:
    command = text_of(pid, "cmdline").replace("\0", " ").strip()[:_COMMAND_CHARS_MAX]
    try:
        program = os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return Program(command=command)
    is_python = "python" in os.path.basename(program) or "libpython" in text_of(pid, "maps")
    return Program(command=command, is_python=is_python)


def text_of(pid: int, name: str) -> str:
    """Return a /proc file of a process as text; "" if it is unreadable."""
    try:
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    except OSError:
        return ""
