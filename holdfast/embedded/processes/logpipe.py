"""The pipe from a child's stdout and stderr to its log file."""

import asyncio
import os

from holdfast.embedded.processes.logfile import RotatingLog

_BLOCK_BYTES = 65_536


class LogPipe:
    """A pipe that the event loop drains into a log until the last writer has closed it. A pipe instead of the file
    itself, so that the file can rotate without losing a line. A child's own children may keep the writing end: the end
    of the stream is never awaited.
    """

    def __init__(self, log: RotatingLog) -> None:
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._reading: int | None
        self._reading, self.writing_end = os.pipe()
        os.set_blocking(self._reading, False)
        self._loop.add_reader(self._reading, self._drain_once)

    @property
    def open(self) -> bool:
        return self._reading is not None

    def close_writing_end(self) -> None:
        os.close(self.writing_end)

    def drain(self) -> None:
        while self._drain_once():
            pass

    def close(self) -> None:
        """Write what has arrived and stop listening."""
        self.drain()
        self._end()

    def _drain_once(self) -> bool:
        if self._reading is None:
            return False
        try:
            block = os.read(self._reading, _BLOCK_BYTES)
        except BlockingIOError:
            return False
        if not block:
            self._end()
            return False
        self._log.write(block)
        return True

    def _end(self) -> None:
        if self._reading is not None:
            self._loop.remove_reader(self._reading)
            os.close(self._reading)
            self._reading = None
