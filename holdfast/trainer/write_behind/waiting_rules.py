"""Rules for the operations of a script that must wait for a file that is on its way to the disk.

Two promises follow from these rules. Whatever the script looks at, it finds each save complete. And whatever the
script changes near a checkpoint reaches the disk after it: what a crash leaves there is always a state that the script
could have left without Holdfast.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterable
from typing import NamedTuple


class Awaited(NamedTuple):
    """Absolute normalised paths of files on their way, and of their directories, under all their names."""

    paths: frozenset[str]
    folders: frozenset[str]


def awaited(paths: Iterable[str]) -> Awaited:
    known = frozenset(paths)
    return Awaited(known, frozenset(posixpath.dirname(path) for path in known))


def must_wait_to_read(path: str, on_way: Awaited) -> bool:
    """Return True for one of the files themselves."""
    return path in on_way.paths


def must_wait_to_list(folder: str, on_way: Awaited) -> bool:
    """Return True for a directory that gets one of the files."""
    return folder in on_way.folders


def must_wait_to_change(path: str, on_way: Awaited, too_wide: Collection[str]) -> bool:
    """Return True for a path whose state may show something about the files: beside them, above them, or in a directory
    beside theirs (`latest`, the checkpoint before this one).

    `too_wide` are directories with everything possible in them, such as the working directory: what lies deeper there
    has nothing to do with the files.
    """
    folder = posixpath.dirname(path)
    for own in on_way.folders:
        if is_within(own, path) or is_within(own, folder):
            return True
        beside = posixpath.dirname(own)
        if is_within(path, beside) and not any(is_within(place, beside) for place in too_wide):
            return True
    return False


def is_within(path: str, folder: str) -> bool:
    """Return True if the path is this directory, or lies below it."""
    return path == folder or path.startswith(folder if folder.endswith("/") else folder + "/")
