"""Mounts of a version's files over those of the source tree, seen by one process and its descendants only."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable

_CLONE_NEWNS = 0x20000
_MS_RDONLY, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_SLAVE = 1, 32, 4096, 16384, 1 << 19
_SYS_OPENAT2 = 437
"""Number of the system call openat2, equal on all architectures."""
_RESOLVE_NO_SYMLINKS = 4

_libc = ctypes.CDLL(None, use_errno=True)


class _How(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def mount_over(root: str, place: str, files: Iterable[str]) -> None:
    """Have this process see these files below `root` as they are below `place`, read-only. Raises OSError.

    Mounts that others make later are seen here, but not the other way round. No link is followed to the place of a
    mount: the tree's owner could lead it to a file of the system's.
    """
    if _libc.unshare(_CLONE_NEWNS):
        raise _error("unshare")
    _mount(None, "/", _MS_REC | _MS_SLAVE)
    for file in files:
        covered = _open_without_links(f"{root}/{file}")
        try:
            _mount(f"{place}/{file}", f"/proc/self/fd/{covered}", _MS_BIND)
        finally:
            os.close(covered)
        _mount(None, f"{root}/{file}", _MS_BIND | _MS_REMOUNT | _MS_RDONLY)


def _open_without_links(path: str) -> int:
    how = _How(os.O_PATH | os.O_CLOEXEC, 0, _RESOLVE_NO_SYMLINKS)
    descriptor: int = _libc.syscall(_SYS_OPENAT2, -100, os.fsencode(path), ctypes.byref(how), ctypes.sizeof(how))
    if descriptor < 0:
        raise _error(path)
    return descriptor


def _mount(source: str | None, target: str, flags: int) -> None:
    encoded = None if source is None else os.fsencode(source)
    if _libc.mount(encoded, os.fsencode(target), None, ctypes.c_ulong(flags), None):
        raise _error(target)


def _error(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), what)
