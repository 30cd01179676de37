"""A training log that is read as it grows."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import structlog

from holdfast_agent.training_logs.open_files import FileKey, FoundLog, kind_of
from holdfast_agent.training_logs.readings import StepReading, StepReadings
from holdfast_agent.training_logs.rights import FileRights
from holdfast_agent.training_logs.scalars import LogParser
from holdfast_agent.training_logs.tags import Tags
from holdfast_agent.training_logs.tfevents import TfEvents
from holdfast_agent.training_logs.wandb_file import WandbFile

READ_BYTES_MAX = 256 * 1024
"""Maximum bytes per read: a log that is far behind takes several reads, so that other logs get their turn."""

log = structlog.get_logger(__name__)


class FollowedLog:
    """An open log. `offset` is the start of the first record that was not taken."""

    def __init__(self, found: FoundLog, tags: Tags, offset: int, rights: FileRights | None = None) -> None:
        """Open the log. Raises OSError if it cannot be opened, another file has taken its place, or these are not
        enough: what a rank has open it need not be able to read, and what it has open may change at any time.
        """
        self.found = found
        self.kind = kind_of(found.path)
        self._readings = StepReadings(tags, Path(found.path).parent.name)
        self._parser: LogParser = WandbFile(offset) if self.kind == "wandb" else TfEvents(offset)
        self._read_to = offset
        self._damaged = 0
        self._descriptor = os.open(found.way, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        status = os.fstat(self._descriptor)
        if FileKey(status.st_dev, status.st_ino) != found.key:
            self.close()
            raise OSError(f"{found.path} is a different file now")
        if rights is not None and not rights.may_read(status):
            self.close()
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), found.path)

    @property
    def offset(self) -> int:
        """End of the last complete record that was taken."""
        return self._parser.offset

    @property
    def tags(self) -> dict[str, str]:
        """The tags that were found, by quantity."""
        return {str(quantity): tag for quantity, tag in self._readings.chosen.items()}

    def read(self) -> list[StepReading]:
        """Return the numbers written since the last call. Raises OSError if the log is unreadable."""
        if self._parser.has_given_up:
            return []
        size = os.fstat(self._descriptor).st_size
        if size < self._read_to:
            log.warning("a training log was truncated and is read from its beginning", file=self.found.path)
            self._parser = WandbFile() if self.kind == "wandb" else TfEvents()
            self._read_to = 0
        data = os.pread(self._descriptor, READ_BYTES_MAX, self._read_to) if size > self._read_to else b""
        if not data:
            return []
        self._read_to += len(data)
        readings = self._readings.take(self._parser.feed(data))
        self._report_damage()
        return readings

    def close(self) -> None:
        os.close(self._descriptor)

    def _report_damage(self) -> None:
        if self._parser.has_given_up:
            log.error("a training log is unreadable and is ignored", file=self.found.path, kind=self.kind)
        elif self._parser.damaged and not self._damaged:
            log.warning("damaged records of a training log were skipped", file=self.found.path)
        self._damaged = self._parser.damaged
