"""Mounting and unmounting, in the mount namespace of a process. What is mounted carries its injection's mark as source.

A node whose agent has a network of its own has mounts of its own, too: what is mounted here is not seen there.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable
from pathlib import Path

from holdfast.faults.aim import Proc

RDONLY, NOSUID, NODEV, REMOUNT, BIND = 1, 2, 4, 32, 4096
_FORCE, _DETACH = 1, 2
_CLONE_NEWNS = 0x0002_0000

_libc = ctypes.CDLL(None, use_errno=True)


def mount(source: str, target: Path, kind: str, flags: int = 0, data: str = "") -> None:
    """mount(2). Raises OSError."""
    done = _libc.mount(source.encode(), os.fsencode(target), kind.encode(), ctypes.c_ulong(flags), data.encode())
    _check(done, f"mount {kind} on {target}")


def unmount_own(target: Path, mark: str) -> None:
    """Take away what lies on `target`, as long as it carries this mark, and whatever uses it. Raises OSError."""
    while _source_of_top(target) == mark:
        # Whoever waits for a file system that does not answer gets an error; of the others this changes nothing.
        _check(_libc.umount2(os.fsencode(target), _FORCE | _DETACH), f"unmount {target}")


def among(process: Proc | None, act: Callable[[], None]) -> None:
    """Do something where `process` looks for files: a child enters its mount namespace. Raises OSError.

    None, or one that has ended: here.
    """
    if process is None or not process.is_alive or _same_mounts(process.pid):
        act()
        return
    pid = os.fork()
    if pid == 0:
        code = errno.EIO
        try:
            namespace = os.open(f"/proc/{process.pid}/ns/mnt", os.O_RDONLY)
            _check(_libc.setns(namespace, _CLONE_NEWNS), "enter the node's mount namespace")
            act()
            code = 0
        except OSError as error:
            code = error.errno or errno.EIO
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code:
        raise OSError(code, os.strerror(code))


def _same_mounts(pid: int) -> bool:
    return os.stat(f"/proc/{pid}/ns/mnt").st_ino == os.stat("/proc/self/ns/mnt").st_ino


def _source_of_top(target: Path) -> str | None:
    """The source of what was mounted last on this very path."""
    source = None
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        place = before.split()[4].encode().decode("unicode_escape")
        if place == str(target):
            source = after.split()[1]
    return source


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
