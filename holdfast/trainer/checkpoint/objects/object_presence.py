"""An object by which jobs that share a place in an object store see that one of them writes there.

It does what `presence` does in a directory. Each beat is a request that is paid for, so they are further apart: a job
that was killed on another machine is waited for longer. Ages are differences of the store's own times.
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
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from holdfast.decoding import UNREADABLE
from holdfast.node.kernel import started_ticks
from holdfast.trainer.checkpoint.storage.presence import Writer, this_machine
from holdfast.trainer.checkpoint.storage.workplace import Owner

BEAT_S = 5.0
STALE_S = 20.0
"""For this long an object of another machine must not have been written until its writer counts as gone."""
END_S = 3.0
"""A rank that ends waits no longer than this for the store."""
_LOOK_EVERY_S = 1.0
_TIMES = ("LastModified", "last_modified", "updated", "mtime", "created")

log = logging.getLogger("holdfast.trainer.checkpoint")

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Writer).decode


class _Seen(NamedTuple):
    writer: Writer
    written_at: float | None


def presence_path(root: str, owner: Owner) -> str:
    return f"{root}/writing/{owner.job}.{owner.submitted_ms}"


class ObjectPresence:
    """The object of this process, for all generations of its submission."""

    def __init__(self, filesystem: Any, root: str, owner: Owner) -> None:
        self._fs = filesystem
        self._root = root
        self._path = presence_path(root, owner)
        self._ended = threading.Event()
        self._beating: threading.Thread | None = None
        self._pid = os.getpid()
        self._beat = 0

    def begin(self) -> None:
        """Make the object, and write it again from now on until `end` or the end of the process."""
        self.write()
        atexit.register(self.end)
        self._beating = threading.Thread(target=self._keep_on, name="holdfast-presence", daemon=True)
        self._beating.start()

    def end(self) -> None:
        """Remove the object, if the store answers in time. In any case it is silent from now on."""
        if os.getpid() == self._pid and self._beating is not None:
            self._ended.set()
            self._beating.join(END_S)

    def living(self, other: Owner, sleep: Callable[[float], None] = time.sleep) -> Writer | None:
        """Return the process that writes for another submission, None if there is none. One of another machine that
        wrote lately is watched, for `STALE_S` at most.
        """
        path = presence_path(self._root, other)
        first = seen = _seen(self._fs, path)
        own = _seen(self._fs, self._path)
        deadline = time.monotonic() + STALE_S
        while seen is not None:
            if seen.writer.machine == this_machine():
                return seen.writer if _is_process(seen.writer, seen.writer.pid) else None
            if first is None or seen.writer != first.writer:
                return seen.writer
            times = (own.written_at if own else None, seen.written_at)
            is_old = times[0] is not None and times[1] is not None and times[0] - times[1] > STALE_S
            if is_old or time.monotonic() > deadline:
                return None
            sleep(_LOOK_EVERY_S)
            seen = _seen(self._fs, path)
        return None

    def _keep_on(self) -> None:
        is_seen = True
        while not self._ended.wait(BEAT_S):
            try:
                self.write()
                is_seen = True
            except Exception as error:  # noqa: BLE001 - the clients' own; training does not depend on it
                if is_seen:
                    log.warning("other jobs may not see that this one writes to %s: %s", self._root, error)
                is_seen = False
        with suppress(Exception):
            if (seen := _seen(self._fs, self._path)) and _is_process(seen.writer, self._pid):
                self._fs.rm_file(self._path)

    def write(self) -> None:
        """Write the object once: its time shows how old those of others are. Errors of the client come through."""
        self._beat += 1
        writer = Writer(
            pid=self._pid,
            started_ticks=started_ticks(self._pid) or 0,
            machine=this_machine(),
            host=socket.gethostname(),
            inode=0,
            beat=self._beat,
        )
        self._fs.pipe_file(self._path, _encode(writer))


def _is_process(writer: Writer, pid: int) -> bool:
    return (writer.machine, writer.pid, writer.started_ticks) == (this_machine(), pid, started_ticks(pid))


def _seen(filesystem: Any, path: str) -> _Seen | None:
    filesystem.invalidate_cache()
    try:
        writer = _decode(filesystem.cat_file(path))
        found = filesystem.info(path)
    except (FileNotFoundError, *UNREADABLE):
        return None
    moment = next((found[name] for name in _TIMES if found.get(name) is not None), None)
    written_at = moment.timestamp() if isinstance(moment, datetime) else moment
    return _Seen(writer, written_at if isinstance(written_at, int | float) else None)
