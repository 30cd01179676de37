"""Restart of a PostgreSQL that lost its storage during the recovery from a crash, and would never accept connections.

Its postmaster restarts all processes after a crash and has one of them recover the files. If that one ends as well, for
a failed read or write, the postmaster may stay: it refuses every connection, with nothing left that recovers, also once
the storage is well. A new server recovers the files from the start.
"""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import asyncpg

from holdfast.embedded.processes.children import Child, ChildState
from holdfast.store.connecting import connect

CHECK_EVERY_S = 2.0
REFUSES_S_MAX = 6.0
"""Time for which a server that refuses may have no process that recovers: after a crash it gives its other processes
five seconds to end."""
_ANSWER_WITHIN_S = 2.0
_AT_WORK = (b"postgres: startup", b"postgres: walwriter")
"""Names of the process that recovers the files, and of one that is there as long as connections are accepted."""
_FAILED = re.compile(r"(?:PANIC|FATAL): +(could not .*: .*)")
_STARTED = "LOG:  starting PostgreSQL "


async def restart_after_failed_recovery(postgres: Child, url: Callable[[], str], report: Callable[[str], None]) -> None:
    """Restart the server when it refuses connections and nothing recovers its files; runs until cancelled.

    If its storage still fails, the new one ends, and is started again with the pauses of its restarts.
    """
    loop = asyncio.get_running_loop()
    process = postgres.record
    refused_since: float | None = None
    was_stopped = False
    while True:
        await asyncio.sleep(CHECK_EVERY_S)
        if postgres.record != process:
            process, refused_since, was_stopped = postgres.record, None, False
        # A start and a stop have limits of their own.
        if process is None or postgres.state is not ChildState.READY or at_work(process.pid) or await _accepts(url()):
            refused_since = None
        elif refused_since is None:
            refused_since = loop.time()
        elif loop.time() - refused_since >= REFUSES_S_MAX and postgres.record == process:
            report("postgres has no process that recovers its files after a crash: restarting it")
            # Its immediate stop, which leaves the files as a crash does; SIGINT has no effect in this state.
            postgres.end_process(signal.SIGKILL if was_stopped else signal.SIGQUIT)
            was_stopped, refused_since = True, loop.time()


def cause_of_end(lines: Iterable[str]) -> str:
    """Return the failed operation that a server's log reports last since it was started; "" if there is none."""
    found = ""
    for line in lines:
        if _STARTED in line:
            found = ""
        elif failed := _FAILED.search(line):
            found = failed[1]
    return found


async def _accepts(url: str) -> bool:
    """Return True if the server accepts connections, or refuses this one for a reason that is not its state."""
    try:
        connection = await connect(url, timeout=_ANSWER_WITHIN_S, ssl=False)
    except (asyncpg.CannotConnectNowError, asyncpg.PostgresConnectionError, asyncpg.InternalClientError, OSError):
        return False
    except (asyncpg.PostgresError, asyncpg.InterfaceError):
        return True
    connection.terminate()
    return True


def at_work(postmaster: int) -> bool:
    """Return True if the server has a process that recovers its files, or that writes for connections; also where the
    kernel does not say."""
    try:
        children = Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split()
    except OSError:
        # Some kernels have no such file; a server that has ended needs no restart either.
        return True
    for child in children:
        with suppress(OSError):
            if Path(f"/proc/{child}/cmdline").read_bytes().startswith(_AT_WORK):
                return True
    return False
