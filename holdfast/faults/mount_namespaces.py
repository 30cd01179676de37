"""Mounts over a directory in the mount namespaces of a node's processes, and their removal by an injection's mark.

A node with a separate network has a separate mount namespace. So a mount is made in each namespace of these processes,
and removed wherever its mark is found.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from holdfast.faults.target import TargetProcess
from holdfast.node.machine import Machine
from holdfast.node.proc.mount_table import mount_table

RDONLY, NOSUID, NODEV = 1, 2, 4
_FORCE, _DETACH = 1, 2
_CLONE_NEWNS = 0x0002_0000

_libc = ctypes.CDLL(None, use_errno=True)


def mount(source: str, target: Path, kind: str, flags: int = 0, data: str = "") -> None:
    """mount(2). Raises OSError."""
    done = _libc.mount(source.encode(), os.fsencode(target), kind.encode(), ctypes.c_ulong(flags), data.encode())
    _check(done, f"mount {kind} on {target}")


def where_seen_by(processes: Iterable[TargetProcess], act: Callable[[], None]) -> None:
    """Call `act` in every mount namespace of these processes; in ours if none is left. Raises OSError."""
    namespaces = _namespaces(process.pid for process in processes if process.is_alive)
    for pid in namespaces or [os.getpid()]:
        _inside(pid, act)


def unmount(target: Path, mark: str) -> None:
    """Unmount everything with this mark from `target`, in all mount namespaces. Raises OSError."""
    for pid in _namespaces(_seeing(mark)):
        _inside(pid, lambda: _unmount_here(target, mark))


def enter(pid: int) -> None:
    """Enter the mount namespace of this process. Raises OSError."""
    namespace = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _check(_libc.setns(namespace, _CLONE_NEWNS), f"enter the mount namespace of process {pid}")
    finally:
        os.close(namespace)


def _unmount_here(target: Path, mark: str) -> None:
    while _source_of_top(target) == mark:
        # Processes that wait for a file system that does not answer get an error; others are not affected.
        _check(_libc.umount2(os.fsencode(target), _FORCE | _DETACH), f"unmount {target}")


def _inside(pid: int, act: Callable[[], None]) -> None:
    """Call `act` in the mount namespace of a process, in a child process, because there is no way back."""
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
    """Return one process for each mount namespace of these."""
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
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if mark in Path(f"/proc/{name}/mountinfo").read_text():
                yield int(name)
        except OSError:
            continue  # The process is gone, or sees no mounts any more.


def _source_of_top(target: Path) -> str | None:
    """Return the source of the last mount on this path."""
    top = (mount_table(Machine()) or {}).get(str(target))
    return None if top is None else top.source


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
