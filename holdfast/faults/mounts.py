"""Mounting over a directory as the processes of a node see it, and taking away what carries an injection's mark.

A node that has a network of its own has mounts of its own, too. So it is done in each mount namespace that one of these
processes is in, and undone wherever the mark is found, whoever lives by then.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from holdfast.faults.target import TargetProcess

RDONLY, NOSUID, NODEV = 1, 2, 4
_FORCE, _DETACH = 1, 2
_CLONE_NEWNS = 0x0002_0000

_libc = ctypes.CDLL(None, use_errno=True)


def mount(source: str, target: Path, kind: str, flags: int = 0, data: str = "") -> None:
    """mount(2). Raises OSError."""
    done = _libc.mount(source.encode(), os.fsencode(target), kind.encode(), ctypes.c_ulong(flags), data.encode())
    _check(done, f"mount {kind} on {target}")


def where_seen_by(processes: Iterable[TargetProcess], act: Callable[[], None]) -> None:
    """Do it in every mount namespace that one of these is in; here, if none is left. Raises OSError."""
    namespaces = _namespaces(process.pid for process in processes if process.is_alive)
    for pid in namespaces or [os.getpid()]:
        _inside(pid, act)


def unmount(target: Path, mark: str) -> None:
    """Take away what lies on `target` as long as it carries this mark, wherever that is seen. Raises OSError."""
    for pid in _namespaces(_seeing(mark)):
        _inside(pid, lambda: _unmount_here(target, mark))


def enter(pid: int) -> None:
    """See files as this process does, from now on. Raises OSError."""
    namespace = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _check(_libc.setns(namespace, _CLONE_NEWNS), f"enter the mount namespace of process {pid}")
    finally:
        os.close(namespace)


def _unmount_here(target: Path, mark: str) -> None:
    while _source_of_top(target) == mark:
        # Whoever waits for a file system that does not answer gets an error; of the others this changes nothing.
        _check(_libc.umount2(os.fsencode(target), _FORCE | _DETACH), f"unmount {target}")


def _inside(pid: int, act: Callable[[], None]) -> None:
    """Do it in the mount namespace of a process; a child goes there, for there is no way back."""
    if _namespace(pid) == _namespace(os.getpid()):
        act()
        return
    child = os.fork()
    if child == 0:
        code = errno.EIO
        try:
            enter(pid)
            act()
            code = 0
        except OSError as error:
            code = error.errno or errno.EIO
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code:
        raise OSError(code, f"in the mount namespace of process {pid}: {os.strerror(code)}")


def _namespaces(pids: Iterable[int]) -> list[int]:
    """One process for each mount namespace that these are in."""
    found: dict[int, int] = {}
    for pid in pids:
        if (namespace := _namespace(pid)) is not None:
            found.setdefault(namespace, pid)
    return list(found.values())


def _namespace(pid: int) -> int | None:
    try:
        return os.stat(f"/proc/{pid}/ns/mnt").st_ino
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None


def _seeing(mark: str) -> Iterable[int]:
    """The processes that see a mount with this mark."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if mark in Path(f"/proc/{name}/mountinfo").read_text():
                yield int(name)
        except OSError:
            # Gone, or it sees no mounts at all any more.
            continue


def _source_of_top(target: Path) -> str | None:
    """The source of what was mounted last on this very path."""
    source = None
    escaped = "".join(f"\\{ord(character):03o}" if character in " \t\n\\" else character for character in str(target))
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        if before.split()[4] == escaped:
            source = after.split()[1]
    return source


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
