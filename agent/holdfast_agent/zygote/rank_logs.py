"""A rank's output: from its pipes to rotating files, a tail in memory and live lines.

Writes never wait for a reader. A full disk costs log lines, not the rank.
"""

from __future__ import annotations

import codecs
import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path

import structlog

from holdfast.engines.log_end import end_of_log
from holdfast_agent.plan.log_lines.log_signatures import Scanner
from holdfast_agent.zygote.copy_file import CopyFile

FILE_BYTES_MAX = 32 * 1024 * 1024
FILES_MAX = 5
TAIL_BYTES = 16_384
STACKS_FACTOR = 8
"""Multiple of the tail's length that is held in memory: stacks at the end of a log are left out of a tail that is too
long, and the lines before them take their place."""
PIECE_BYTES_MAX = 8_192
"""A longer line is forwarded in pieces."""
PIPE_BYTES = 1024 * 1024
READ_BYTES = 65_536
READS_PER_TURN = 8
"""Limit per turn, so that a rank that prints without end leaves the other ranks their turn."""

log = structlog.get_logger(__name__)


class RotatingFile:
    """A file that is renamed to `.1`, `.2`... when it is full."""

    def __init__(self, path: Path, bytes_max: int = FILE_BYTES_MAX, files_max: int = FILES_MAX) -> None:
        self.path = path
        self._bytes_max = bytes_max
        self._files_max = files_max
        self._descriptor = -1
        self._size = 0
        self.lost_bytes = 0

    def write(self, data: bytes) -> None:
        """Append data; bytes that cannot be written are counted in `lost_bytes`."""
        try:
            if self._descriptor < 0:
                self._open()
            if self._size and self._size + len(data) > self._bytes_max:
                self._rotate()
            written = os.write(self._descriptor, data)
        except OSError as error:
            if not self.lost_bytes:
                log.error("a rank's output cannot be written", file=str(self.path), reason=error.strerror)
            self.lost_bytes += len(data)
            return
        self._size += written
        self.lost_bytes += len(data) - written

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _open(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._size = os.fstat(self._descriptor).st_size

    def _rotate(self) -> None:
        self.close()
        for number in range(self._files_max - 1, 0, -1):
            older = self._numbered(number)
            if older.exists():
                if number + 1 >= self._files_max:
                    older.unlink()
                else:
                    older.replace(self._numbered(number + 1))
        if self._files_max > 1:
            self.path.replace(self._numbered(1))
        else:
            self.path.unlink()
        self._open()

    def _numbered(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")


class Tail:
    """The last bytes of an output."""

    def __init__(self, bytes_max: int = TAIL_BYTES) -> None:
        self._bytes_max = bytes_max
        self._held_max = STACKS_FACTOR * bytes_max
        self._buffer = bytearray()

    def add(self, data: bytes) -> None:
        self._buffer += data
        excess = len(self._buffer) - self._held_max
        # Cutting larger pieces keeps small writes cheap.
        if excess > self._held_max:
            del self._buffer[:excess]

    def text(self) -> str:
        """Return the tail as text; invalid UTF-8 is replaced."""
        return end_of_log(bytes(self._buffer[-self._held_max :]).decode(errors="replace"), self._bytes_max)


LineSink = Callable[[list[str], bool], None]
"""Takes lines; if the flag is True the last one goes on in the next call."""


class Output:
    """One output pipe of a rank."""

    def __init__(
        self,
        descriptor: int,
        file: RotatingFile,
        tail: Tail,
        scanner: Scanner | None = None,
        copy: CopyFile | None = None,
    ) -> None:
        os.set_blocking(descriptor, False)
        try:
            fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        except OSError as error:
            # Beyond the user's limit of pipe memory the pipe keeps its default size, which works as well.
            log.debug("a pipe stays small", reason=error.strerror)
        self.descriptor = descriptor
        self._file = file
        self._tail = tail
        self._scanner = scanner
        self._copy = copy
        self._partial = b""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._is_open = False
        """A piece of a line was forwarded, and its end was not."""
        self.follower: LineSink | None = None

    def pump(self, reads_max: int = READS_PER_TURN) -> bool:
        """Forward the available data; return False once the pipe has ended."""
        for _ in range(reads_max):
            try:
                data = os.read(self.descriptor, READ_BYTES)
            except BlockingIOError:
                return True
            if not data:
                self._flush()
                return False
            self._file.write(data)
            self._tail.add(data)
            if self._copy is not None:
                self._copy.write(data)
            if self._scanner is not None:
                self._scanner.feed(data, time.monotonic())
            if self.follower is not None:
                self._split(data)
            elif self._partial:
                self._partial = b""
        return True

    def close(self) -> None:
        self._flush()
        os.close(self.descriptor)
        self._file.close()
        if self._copy is not None:
            self._copy.close()

    def _split(self, data: bytes) -> None:
        *lines, self._partial = (self._partial + data).split(b"\n")
        whole: list[str] = []
        for line in lines:
            if len(line) > PIECE_BYTES_MAX:
                *pieces, line = [line[at : at + PIECE_BYTES_MAX] for at in range(0, len(line), PIECE_BYTES_MAX)]
                for piece in pieces:
                    self._send([*whole, self._text(piece)], is_open=True)
                    whole = []
            whole.append(self._text(line, ends=True))
        if whole:
            self._send(whole, is_open=False)
        # A bar of progress moves its cursor back, and ends its line when all is done.
        if b"\r" in self._partial or len(self._partial) > PIECE_BYTES_MAX:
            self._send([self._text(self._partial)], is_open=True)
            self._partial = b""

    def _flush(self) -> None:
        if self.follower is not None and (self._partial or self._is_open):
            self._send([self._text(self._partial, ends=True)], is_open=False)
        self._partial = b""

    def _text(self, line: bytes, *, ends: bool = False) -> str:
        return self._decoder.decode(line, ends)

    def _send(self, lines: list[str], *, is_open: bool) -> None:
        self._is_open = is_open
        if self.follower is not None:
            self.follower(lines, is_open)
