"""Translates audit events of Python into uses of files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from enum import Enum
from typing import Any


class Use(Enum):
    READS = "reads"
    LISTS = "lists"
    CHANGES = "changes"
    ANYTHING = "anything"
    """Another program, which may do whatever it wants."""


_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_CHANGES_FIRST = frozenset({"os.remove", "os.rmdir", "os.truncate", "shutil.rmtree"})
_CHANGES_BOTH = frozenset({"os.rename", "os.link", "shutil.move"})
_COPIES = frozenset({"shutil.copyfile", "shutil.copytree"})
_READS = frozenset({"look", "os.chmod", "os.chown", "os.utime", "os.getxattr", "os.setxattr"})
_LISTS = frozenset({"os.listdir", "os.scandir"})
_PROGRAMS = frozenset(
    {"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "pty.spawn", "shutil.make_archive"}
)
_NO_DESCRIPTOR = -1


def uses_of(event: str, args: tuple[Any, ...]) -> Iterator[tuple[Use, str]]:
    """Yield each use and its path, absolute and without links; an operation that will fail by its path has none."""
    try:
        yield from _uses_of(event, args)
    except (OSError, ValueError, TypeError):
        return


def _uses_of(event: str, args: tuple[Any, ...]) -> Iterator[tuple[Use, str]]:
    if event == "open":
        yield from _opening(*args)
    elif event in _PROGRAMS:
        yield Use.ANYTHING, ""
    elif event in _CHANGES_FIRST:
        yield Use.CHANGES, _entry(args[0], _descriptor(args, 1) if event != "os.truncate" else _NO_DESCRIPTOR)
    elif event in _CHANGES_BOTH:
        yield Use.CHANGES, _entry(args[0], _descriptor(args, 2))
        yield Use.CHANGES, _entry(args[1], _descriptor(args, 3))
    elif event == "os.symlink":
        yield Use.CHANGES, _entry(args[1], _descriptor(args, 2))
    elif event in _COPIES:
        yield Use.READS, _real(args[0])
        yield Use.CHANGES, _real(args[1])
    elif event in _READS:
        options = args[1] if event == "look" else {}
        place = options.get("dir_fd")
        yield Use.READS, _real(args[0], _NO_DESCRIPTOR if place is None else place)
    elif event in _LISTS:
        yield Use.LISTS, _real("." if args[0] is None else args[0])


def _opening(path: Any, mode: Any = None, flags: Any = 0, *_: Any) -> Iterator[tuple[Use, str]]:
    if isinstance(path, int):
        return
    # What is only added to a file is a log.
    is_written = isinstance(flags, int) and flags & _WRITES and not flags & os.O_APPEND
    yield (Use.CHANGES if is_written else Use.READS), _real(path)


def _descriptor(args: tuple[Any, ...], at: int) -> int:
    found = args[at] if len(args) > at else None
    return found if isinstance(found, int) else _NO_DESCRIPTOR


def _real(path: Any, descriptor: int = _NO_DESCRIPTOR) -> str:
    """Return the file that a path leads to."""
    if isinstance(path, int):
        return os.readlink(f"/proc/self/fd/{path}")
    named = os.fsdecode(path)
    if descriptor != _NO_DESCRIPTOR:
        named = os.path.join(os.readlink(f"/proc/self/fd/{descriptor}"), named)
    return os.path.realpath(named)


def _entry(path: Any, descriptor: int = _NO_DESCRIPTOR) -> str:
    """Return the entry of a directory that a path names, which may be a link."""
    if isinstance(path, int):
        return os.readlink(f"/proc/self/fd/{path}")
    folder, name = os.path.split(os.path.abspath(os.fsdecode(path)) if descriptor == _NO_DESCRIPTOR else path)
    return os.path.join(_real(folder, descriptor), name)
