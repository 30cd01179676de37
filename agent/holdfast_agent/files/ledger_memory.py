"""The ledgers' directory in shared memory: how its use is marked, and when it may be freed.

The node's agent and zygote hold a shared lock on a file in it. A directory without a lock was left by a kill, and any
agent of the same user on the machine frees it. That waits an hour, because the node's own agent, started again, reads
in the ledgers how far its ranks had come.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import stat
import time
from functools import cached_property
from pathlib import Path

from holdfast.engines.checks.checks_program import SCRATCH_PREFIX
from holdfast.node.trees import remove_tree

SHARED_MEMORY = Path("/dev/shm")

ABANDONED_S = 3600.0
"""Age at which a directory without a lock is freed, counted from the last start of a generation there."""

CHECKS_ABANDONED_S = 86_400.0
"""Age at which what checks left is freed, if no later ones of the node have done so: none take that long."""

ROOM_BYTES = 16 << 20
"""Free memory that a generation needs there: 0.6 MB for the ledger of each rank of the node and its collectives."""
ROOM_FILES = 1000

_LOCK = ".held"


class LedgerMemory:
    """The directory in memory for the ledgers of the node whose state lies in `root`."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._held: int | None = None

    @cached_property
    def path(self) -> Path:
        # Containers may share /dev/shm and use equal state directory names: path and inode tell them apart.
        root = self._root.stat()
        name = f"{self._root.resolve()} {root.st_dev} {root.st_ino}"
        digest = hashlib.sha256(name.encode()).hexdigest()[:16]
        return SHARED_MEMORY / f"{_prefix()}{digest}"

    def make(self) -> Path:
        """Make the directory, or take the one that is there. Raises PermissionError if another user has made it."""
        with contextlib.suppress(FileExistsError):
            self.path.mkdir(mode=0o700)
        # Any user may make directories there. In another user's, a link could lead what is written anywhere.
        found = self.path.lstat()
        if not _is_ours(found):
            raise PermissionError(
                errno.EPERM, f"user {found.st_uid} has made it in place of this node's: remove it", str(self.path)
            )
        return self.path

    def hold(self) -> None:
        """Hold the directory until this process ends, and note that it is in use now."""
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            # Waits for a moment at most: the only exclusive lock is that of an agent that frees an abandoned directory.
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            os.utime(descriptor)
            if self._held is not None:
                os.close(self._held)
            self._held = descriptor

    def free(self) -> None:
        with contextlib.suppress(OSError):
            remove_tree(self.path)


def free_abandoned(memory: Path = SHARED_MEMORY) -> int:
    """Free what killed agents and checks of this user left; return the number of directories."""
    ledgers = sum(_free_if_abandoned(folder) for folder in memory.glob(f"{_prefix()}*"))
    return ledgers + sum(_free_if_of_old_checks(folder) for folder in memory.glob(f"{SCRATCH_PREFIX}*"))


def has_room() -> bool:
    """Return True if the ledgers of a generation fit there. A file system without limits reports no numbers."""
    if not SHARED_MEMORY.is_dir() or not os.access(SHARED_MEMORY, os.W_OK):
        return False
    found = os.statvfs(SHARED_MEMORY)
    return (not found.f_blocks or found.f_bavail * found.f_frsize >= ROOM_BYTES) and (
        not found.f_files or found.f_favail >= ROOM_FILES
    )


def _free_if_of_old_checks(folder: Path) -> bool:
    try:
        found = folder.lstat()
        if not _is_ours(found) or time.time() - found.st_mtime < CHECKS_ABANDONED_S:
            return False
        remove_tree(folder)
    except OSError:
        return False
    return True


def _free_if_abandoned(folder: Path) -> bool:
    try:
        # Another user's may hold a link: to a file whose lock matters, or to a device that acts when it is opened.
        if not _is_ours(folder.lstat()):
            return False
        descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        if time.time() - os.fstat(descriptor).st_mtime < ABANDONED_S:
            return False
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        remove_tree(folder)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def _is_ours(found: os.stat_result) -> bool:
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()


def _prefix() -> str:
    return f"holdfast-{os.getuid()}-"
