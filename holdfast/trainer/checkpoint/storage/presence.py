"""A file by which jobs that share a directory, also jobs of different clusters, see that one of them writes there.

Each of two such jobs would remove the other's steps. So rank 0 of a job that writes has this file in its workplace, and
touches it every few seconds. A process of the same machine is looked up by its number. Of another machine's process
only the file shows whether it lives: it was touched lately, or is touched while one watches. Ages are differences
between times that the file system itself has given, so no clock of a machine counts. No lock is needed, which would
outlive its holder or, on network file systems, not reach it. A file that was copied with its directory is no sign.
"""

from __future__ import annotations

import atexit
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from enum import Enum, auto
from pathlib import Path
from typing import NamedTuple

import msgspec

from holdfast.decoding import UNREADABLE
from holdfast.node.kernel import started_ticks

log = logging.getLogger("holdfast.trainer.checkpoint")

NAME = "writing"
BEAT_S = 2.0
STALE_S = 10.0
"""For this long a file of another machine must not have been touched until its writer counts as gone."""
HOLD_AGAIN_S = 60.0
"""Pause before storage that could not be marked as this job's is tried again."""
_LOOK_EVERY_S = 0.25
_BYTES_MAX = 4096


class Writer(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the file."""

    pid: int
    started_ticks: int
    machine: str
    """This boot of the machine, and the namespace of its processes that `pid` belongs to."""
    host: str
    inode: int
    """Inode of the file itself, by which a copy of the file is recognized."""
    beat: int = 0


class Life(Enum):
    GONE = auto()
    ALIVE = auto()
    UNSURE = auto()
    """The writer is on another machine, and has touched the file lately."""


class Sighting(NamedTuple):
    writer: Writer
    touched_ns: int

    @property
    def words(self) -> str:
        return words_of(self.writer)


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Writer).decode


def this_machine() -> str:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.readlink('/proc/self/ns/pid')}"


def words_of(writer: Writer) -> str:
    return f"process {writer.pid} on {ascii(writer.host)[1:-1][:64]}"


class Presence:
    """The file of this process in its workplace."""

    def __init__(self, workplace: Path) -> None:
        self._path = workplace / NAME
        self._ended = threading.Event()
        self._pid = os.getpid()
        self._beat = 0
        self._writer: Writer | None = None

    def begin(self) -> None:
        """Make the file, and touch it from now on until `end` or the end of the process. Raises OSError."""
        self._write(os.O_CREAT)
        atexit.register(self.end)
        threading.Thread(target=self._keep_on, name="holdfast-presence", daemon=True).start()

    def end(self) -> None:
        if os.getpid() == self._pid and not self._ended.is_set():
            self._ended.set()
            with suppress(OSError):
                self._path.unlink()

    def _keep_on(self) -> None:
        while not self._ended.wait(BEAT_S):
            try:
                self._write(0)
            except FileNotFoundError:
                if not self._ended.is_set():
                    log.warning("%s is gone: another generation or another job writes there now", self._path.parent)
                return
            except OSError as error:
                log.debug("%s cannot be touched: %s", self._path, error)

    def _write(self, flags: int) -> None:
        # Opened each time, and never replaced: clients of network file systems look for changes when they open it.
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | flags, 0o644)
        try:
            self._beat += 1
            content = _encode(
                Writer(
                    pid=self._pid,
                    started_ticks=started_ticks(self._pid) or 0,
                    machine=this_machine(),
                    host=socket.gethostname(),
                    inode=os.fstat(descriptor).st_ino,
                    beat=self._beat,
                )
            )
            os.pwrite(descriptor, content.ljust(512), 0)
        finally:
            os.close(descriptor)


def seen_in(workplace: Path) -> Sighting | None:
    """Return the writer that a workplace shows; None if it shows none."""
    try:
        descriptor = os.open(workplace / NAME, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        found = os.fstat(descriptor)
        writer = _decode(os.read(descriptor, _BYTES_MAX))
    except (OSError, *UNREADABLE):
        return None
    finally:
        os.close(descriptor)
    return Sighting(writer, found.st_mtime_ns) if writer.inode == found.st_ino else None


def life_of(seen: Sighting, now_ns: Callable[[], int]) -> Life:
    """Return whether the writer lives; `now_ns` returns the time that the file system gives to a file now."""
    if seen.writer.machine == this_machine():
        lives = started_ticks(seen.writer.pid) == seen.writer.started_ticks
        return Life.ALIVE if lives else Life.GONE
    # A time to come is one from before a clock of the file server was put back.
    return Life.GONE if now_ns() - seen.touched_ns > STALE_S * 1e9 else Life.UNSURE


def living(workplace: Path, now_ns: Callable[[], int]) -> Sighting | None:
    """Return the writer of a workplace if it lives. One that is not certain is watched, for `STALE_S` at most."""
    first = seen = seen_in(workplace)
    deadline = time.monotonic() + STALE_S
    while seen is not None:
        life = life_of(seen, now_ns)
        if life is Life.ALIVE or seen != first:
            return seen
        if life is Life.GONE or time.monotonic() > deadline:
            return None
        time.sleep(_LOOK_EVERY_S)
        seen = seen_in(workplace)
    return None
