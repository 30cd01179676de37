"""Standard input that a caller gives to a job, whose ranks do not read it."""

from __future__ import annotations

import fcntl
import os
import stat
import struct
import termios
from typing import TextIO

UNREAD = (
    "[holdfast] ranks do not read this command's standard input, which has data: theirs is empty. Give the "
    "data as a file, or as an argument"
)


def is_input_waiting(stream: TextIO | None) -> bool:
    """Return True if a file or a pipe with data is the standard input. What arrives later is not known."""
    try:
        descriptor = -1 if stream is None else stream.fileno()
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode):
            return os.lseek(descriptor, 0, os.SEEK_CUR) < status.st_size
        if stat.S_ISFIFO(status.st_mode):
            (waiting,) = struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, b"\0" * 4))
            return bool(waiting)
    except (OSError, ValueError):
        # It is closed, or no file.
        return False
    return False
