"""Brings the spool's write-ahead log to the disk, in a separate thread, so that no decision waits for the disk.

A power cut then loses the last tenth of a second at most. Commits share a sync if they come during the one before, or
shortly after each other.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

import structlog

from holdfast.node.durable import sync_directory

GATHER_S = 0.05
"""Delay of a sync after the commit that asked for it. NATS and Postgres usually commit to the same disk what follows
from an event, and would wait for this sync."""

log = structlog.get_logger(__name__)


class WalSync:
    """The thread, and the file that it syncs. The file must exist until `close`."""

    def __init__(self, wal: Path) -> None:
        self._file = os.open(wal, os.O_RDONLY | os.O_CLOEXEC)
        self._wanted = threading.Event()
        self._closed = threading.Event()
        self._failure = ""
        sync_directory(wal.parent)
        self._thread = threading.Thread(target=self._run, name="spool sync", daemon=True)
        self._thread.start()

    def request(self) -> None:
        """Ask for a sync of everything written so far; returns at once."""
        self._wanted.set()

    def close(self) -> None:
        """Sync what was requested, and end the thread."""
        self._closed.set()
        self._wanted.set()
        self._thread.join()
        # The thread may have ended after a sync that began before the last commit.
        self._sync()
        os.close(self._file)

    def _run(self) -> None:
        while not self._closed.is_set():
            self._wanted.wait()
            self._closed.wait(GATHER_S)
            # Cleared first: a commit during the sync asks for another one.
            self._wanted.clear()
            self._sync()

    def _sync(self) -> None:
        try:
            os.fdatasync(self._file)
            failure = ""
        except OSError as error:
            failure = error.strerror or str(error)
        if failure and failure != self._failure:
            log.error("the spool does not reach the disk: a power cut would lose the newest events", reason=failure)
        self._failure = failure
