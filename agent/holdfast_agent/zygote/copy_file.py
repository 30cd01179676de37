"""A file below --log-dir: a rank's output as it is, written with the rights of the job's user."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import structlog

from holdfast.node.holders import acting_as
from holdfast.node.kernel import allow_tracing
from holdfast.node.users.job_user import JobUser

log = structlog.get_logger(__name__)


class CopyFile:
    """A file that grows with a stream. One that cannot be written is reported once, and the rank goes on."""

    def __init__(self, path: Path, user: JobUser | None) -> None:
        self._path = path
        self._descriptor = -1
        try:
            with acting_as(user):
                path.parent.mkdir(parents=True, exist_ok=True)
                # A job may have put a pipe there, at which the zygote would wait.
                flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
                self._descriptor = os.open(path, flags, 0o644)
            if not stat.S_ISREG(os.fstat(self._descriptor).st_mode):
                raise OSError(errno.EINVAL, "it is no file")
        except OSError as error:
            self._give_up(error)
        finally:
            if user is not None:
                # A change of user turns it off, and forks inherit that.
                allow_tracing()

    def write(self, data: bytes) -> None:
        if self._descriptor < 0:
            return
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _give_up(self, error: OSError) -> None:
        log.error("a file below --log-dir cannot be written", file=str(self._path), reason=error.strerror)
        self.close()
