"""Files of a tree that the kernel watches: whether any may have changed since, without a look at each.

inotify reports what processes of this machine do to files, so only disks of this machine are watched: directories for
what their names lead to, and files for their content, which may have another name elsewhere. It does not report mounts,
nor what is written to a mapped file after it was closed: no compiler, editor or version control does that to sources.
"""

from __future__ import annotations

import ctypes
import io
import os
import struct
from collections.abc import Collection

from holdfast.node.machine import Machine
from holdfast.node.proc.mount_table import mount_table

FILE_SYSTEMS = frozenset({"ext2", "ext3", "ext4", "xfs", "tmpfs"})
"""File systems that only this machine changes, and that have one number for all of a mount's files."""
READS_MAX = 16
"""Reads of 64 KiB; a tree with more news is compared again."""

# In <sys/inotify.h>.
_OF_FILES = 0x2 | 0x4 | 0x8  # modified, attributes, closed after writing
_OF_DIRECTORIES = 0x4 | 0x40 | 0x80 | 0x100 | 0x200 | 0x400 | 0x800  # attributes, moved, created, deleted; itself too
_ONLY_DIRECTORY, _NO_LINK = 0x0100_0000, 0x0200_0000
_EVENT = struct.Struct("iIII")
_READ_BYTES = 65_536

_libc = ctypes.CDLL(None, use_errno=True)


class NotWatched(OSError):
    """Changes of this tree would not be noticed, or it has too many files."""


class Unchanged:
    """A watch of the files and links at these paths below `root`. It ends with this object."""

    def __init__(self, root: str, paths: Collection[str]) -> None:
        """Raises NotWatched, or another OSError if the tree cannot be read."""
        self._root = root
        self._place = _place(root)
        if _file_system(self._place[0]) not in FILE_SYSTEMS:
            raise NotWatched(f"{root} is on another machine's disk, or on several")
        self._events = io.FileIO(_checked(_libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)), "r")
        self._names = _names_in_directories(paths)
        self._directories = {self._watch_directory(directory): directory for directory in self._names}
        for path in paths:
            self._watch(f"{root}/{path}", _OF_FILES | _NO_LINK)
        self._has_changed = False

    def still(self) -> bool:
        """Return True if no path leads to another file, or to other content, than when the watch began."""
        self._has_changed = self._has_changed or self._is_replaced() or self._has_news()
        return not self._has_changed

    def _watch_directory(self, directory: str) -> int:
        path = f"{self._root}/{directory}"
        if os.stat(path).st_dev != self._place[0]:
            raise NotWatched(f"{path} is on another file system")
        return self._watch(path, _OF_DIRECTORIES | _ONLY_DIRECTORY)

    def _watch(self, path: str, news: int) -> int:
        return _checked(_libc.inotify_add_watch(self._events.fileno(), os.fsencode(path), news))

    def _is_replaced(self) -> bool:
        """Return True if a directory above the tree was renamed, or is a link that was changed."""
        try:
            return _place(self._root) != self._place
        except OSError:
            return True

    def _has_news(self) -> bool:
        for _ in range(READS_MAX):
            data = self._events.read(_READ_BYTES)
            if not data:
                return False
            if self._concerns(data):
                return True
        return True

    def _concerns(self, data: bytes) -> bool:
        at = 0
        while at < len(data):
            watch, _, _, length = _EVENT.unpack_from(data, at)
            at += _EVENT.size
            name = os.fsdecode(data[at : at + length].rstrip(b"\0"))
            at += length
            # Without a name it is about a file, or a directory itself, or reports that events were lost.
            if not name or name in self._names[self._directories[watch]]:
                return True
        return False


def _names_in_directories(paths: Collection[str]) -> dict[str, set[str]]:
    """Return the parts of all paths: for each directory on the way to one, "" for the root, what is looked up there."""
    names: dict[str, set[str]] = {"": set()}
    for path in paths:
        while True:
            directory, _, name = path.rpartition("/")
            is_known = directory in names
            names.setdefault(directory, set()).add(name)
            if is_known:
                break
            path = directory
    return names


def _place(path: str) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_dev, found.st_ino


def _file_system(device: int) -> str:
    number = f"{os.major(device)}:{os.minor(device)}"
    mounts = (mount_table(Machine()) or {}).values()
    return next((mount.kind for mount in mounts if mount.number == number), "")


def _checked(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise NotWatched(code, os.strerror(code))
    return result
