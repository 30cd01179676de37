"""A log file that rotates by size and never fails or blocks its writer."""

import os
from pathlib import Path

LOG_BYTES_MAX = 16 * 1024 * 1024
LOG_FILES_MAX = 4


class RotatingLog:
    """A file to append to. Past `bytes_max` it becomes `<name>.1`, older files move up, the oldest is deleted. A full
    disk loses only log lines: the loss is counted, and logged when there is room again.
    """

    def __init__(self, path: Path, *, bytes_max: int = LOG_BYTES_MAX, files_max: int = LOG_FILES_MAX) -> None:
        self.path = path
        self._bytes_max = bytes_max
        self._files_max = files_max
        self._lost_bytes = 0
        self._fd = self._open()
        self._size = os.fstat(self._fd).st_size

    def fileno(self) -> int:
        return self._fd

    def write(self, data: bytes) -> None:
        try:
            if self._size + len(data) > self._bytes_max and self._size > 0:
                self._rotate()
            if self._lost_bytes:
                self._append(b"[holdfast: %d bytes of this log were lost, the disk was full]\n" % self._lost_bytes)
                self._lost_bytes = 0
            self._append(data)
        except OSError:
            self._lost_bytes += len(data)

    def close(self) -> None:
        os.close(self._fd)

    def _append(self, data: bytes) -> None:
        while data:
            written = os.write(self._fd, data)
            self._size += written
            data = data[written:]

    def _open(self) -> int:
        return os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def _rotate(self) -> None:
        # If opening failed the last time, the old files have already moved up.
        for number in range(self._files_max - 1, 0, -1) if self.path.exists() else ():
            older = self.path if number == 1 else self._numbered(number - 1)
            if older.exists():
                os.replace(older, self._numbered(number))
        successor = self._open()
        os.close(self._fd)
        self._fd = successor
        self._size = 0

    def _numbered(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")


def tail(path: Path, lines: int, size: int | None = None) -> list[str]:
    """Return the last lines of a log and its rotated part, [] if there is none; `size`: where to end, None for all."""
    found = _last_lines(path, lines, size)
    rotated = path.with_name(f"{path.name}.1")
    return _last_lines(rotated, lines - len(found), None) + found


def _last_lines(file: Path, lines: int, size: int | None) -> list[str]:
    if lines <= 0:
        return []
    try:
        with open(file, "rb") as stream:
            end = stream.seek(0, os.SEEK_END) if size is None else size
            block = b""
            while end > 0 and block.count(b"\n") <= lines:
                step = min(65_536, end)
                end -= step
                stream.seek(end)
                block = stream.read(step) + block
    except FileNotFoundError:
        return []
    return [line.decode(errors="replace") for line in block.removesuffix(b"\n").split(b"\n")[-lines:]] if block else []
