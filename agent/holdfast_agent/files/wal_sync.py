"""Brings the spool's write-ahead log to the disk, in a separate thread, so that no decision waits for the disk.

A power cut then loses the last milliseconds at most. Commits that come during a sync share the next one.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

import structlog

log = structlog.get_logger(__name__)


class WalSync:
    """The thread, and the file that it syncs. The file must exist until `close`."""

    def __init__(self, wal: Path) -> None:
        self._file = os.open(wal, os.O_RDONLY | os.O_CLOEXEC)
        self._wanted = threading.Event()
        self._is_closed = False
        self._failure = ""
        _sync_directory(wal.parent)
        self._thread = threading.Thread(target=self._run, name="spool sync", daemon=True)
        self._thread.start()

    def request(self) -> None:
        """Ask for a sync of everything written so far; returns at once."""
        self._wanted.set()

    def close(self) -> None:
        """Sync what was requested, and end the thread."""
        self._is_closed = True
        self._wanted.set()
        self._thread.join()
        os.close(self._file)

    def _run(self) -> None:
        while not self._is_closed:
            self._wanted.wait()
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


def _sync_directory(directory: Path) -> None:
    """Bring the names of new files to the disk."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
