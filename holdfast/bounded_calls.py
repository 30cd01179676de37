"""System calls that may never return, as on a network file system that is away: each runs in its own thread, which the
caller does not wait for.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Callable
from concurrent.futures import Future
from io import BufferedReader
from typing import TypeVar

T = TypeVar("T")

WRITER_WITHIN_S = 1.0
"""Time for a writer of a named pipe to appear."""
TEXT_BYTES_MAX = 16 << 20
"""Longest text of a file that a person named: devices have no end."""


class NoWriter(OSError):
    """A named pipe that no process writes to: to open it would wait for one without end."""


def in_thread(call: Callable[[], T]) -> Future[T]:
    """Begin a call in a new thread, and return what it will return or raise."""
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that asks for the result
            outcome.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return outcome


def within(call: Callable[[], T], limit_s: float) -> T:
    """Return what a call returns. Raises what it raises, or TimeoutError; its thread is then left behind."""
    return in_thread(call).result(limit_s)


def open_file(path: str | os.PathLike[str]) -> BufferedReader:
    """Open a file that a person named, for reading. Raises OSError; NoWriter for a named pipe without a writer.

    A pipe that is being written is read to its end, however long its writer takes.
    """
    if not stat.S_ISFIFO(os.stat(path).st_mode):
        return open(path, "rb")
    try:
        return within(lambda: open(path, "rb"), WRITER_WITHIN_S)
    except TimeoutError:
        raise NoWriter(
            f"{os.fspath(path)} is a named pipe, and no process writes to it: name a regular file, or start the writer "
            "first"
        ) from None


def read_text(path: str | os.PathLike[str]) -> str:
    """Return the text of such a file. Raises OSError as `open_file` or if it has no end, or UnicodeDecodeError."""
    with open_file(path) as file:
        found = file.read(TEXT_BYTES_MAX + 1)
    if len(found) > TEXT_BYTES_MAX:
        raise OSError(errno.EFBIG, f"it is longer than {TEXT_BYTES_MAX >> 20} MiB", os.fspath(path))
    return found.decode()
