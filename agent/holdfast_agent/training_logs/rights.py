"""Rights on files for a single thread: root must not read what a rank names and may not read itself."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from holdfast.node.kernel import allow_tracing

_SETGROUPS = {"x86_64": 116, "aarch64": 159}
"""The system call by machine: the function of the C library changes all threads."""
_libc = ctypes.CDLL(None, use_errno=True)


class FileRights(NamedTuple):
    """The ids by which the kernel decides on files."""

    uid: int
    gid: int
    groups: tuple[int, ...]

    def may_read(self, status: os.stat_result) -> bool:
        """Return True if the file's mode lets them read it, once they have it open."""
        if not self.uid or self.uid == os.geteuid():
            return True
        if status.st_uid == self.uid:
            return bool(status.st_mode & stat.S_IRUSR)
        is_of_group = status.st_gid in (self.gid, *self.groups)
        return bool(status.st_mode & (stat.S_IRGRP if is_of_group else stat.S_IROTH))


def of_process(pid: int) -> FileRights | None:
    """Return those of a process; None if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_bytes().splitlines()
    except OSError:
        return None
    fields = {name: rest.split() for name, _, rest in (line.partition(b":") for line in lines)}
    groups = tuple(map(int, fields[b"Groups"]))
    return FileRights(int(fields[b"Uid"][3]), int(fields[b"Gid"][3]), groups)


def of_ranks(pids: Iterable[int], user: str) -> FileRights | None:
    """Return the rights of ranks. `user` is the name of their user, "" if it may be the agent's. None: not known yet,
    as between a rank's fork and its change of user.
    """
    found = next((rights for pid in pids if (rights := of_process(pid)) is not None), None)
    if found is None or not found.uid:
        return None if user else FileRights(os.geteuid(), os.getegid(), tuple(os.getgroups()))
    return found


@contextmanager
def held(rights: FileRights) -> Iterator[None]:
    """Open files with these rights, in this thread only. Raises OSError if the kernel or the machine refuses."""
    before = FileRights(os.geteuid(), os.getegid(), tuple(os.getgroups()))
    if before.uid or rights.uid == before.uid:
        yield
        return
    _set(rights)
    try:
        yield
    finally:
        _set(before)
        # A change of user turns it off, for all threads.
        allow_tracing()


def _set(rights: FileRights) -> None:
    number = _SETGROUPS.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, "groups of a single thread cannot be set on this machine")
    groups = (ctypes.c_uint32 * len(rights.groups))(*rights.groups)
    # Groups first: without root's user they cannot be changed. On the way back the user is root's all the same, since
    # only the user for files was changed.
    if _libc.syscall(number, len(rights.groups), groups) != 0:
        raise OSError(ctypes.get_errno(), "the groups of this thread cannot be set")
    _libc.setfsgid(rights.gid)
    _libc.setfsuid(rights.uid)
    if (_libc.setfsuid(-1), _libc.setfsgid(-1)) != (rights.uid, rights.gid):
        raise OSError(errno.EPERM, "the user of this thread's files cannot be set")
