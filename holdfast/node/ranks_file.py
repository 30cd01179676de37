"""Files that ranks own: any other process that opens one must expect a link, a pipe or a device in its place."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def open_ranks_file(path: str | os.PathLike[str], mode: int = os.O_RDONLY) -> int:
    """Open a regular file that a rank has made, without following a link or waiting for a writer. Raises OSError."""
    descriptor = os.open(path, mode | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is no file", str(path))
        if mode & (os.O_WRONLY | os.O_RDWR) and found.st_uid != os.stat(Path(path).parent).st_uid:
            # A hard link to another user's file, where the kernel allows that.
            raise OSError(errno.EPERM, "it belongs to another user", str(path))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
