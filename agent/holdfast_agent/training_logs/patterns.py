"""Files that a user names by patterns, in directories that a job may write into.

Two links to their own directory are 2^40 paths for `glob`, and it calls itself for each level. Here a directory is
looked into once for each part of a pattern, whichever path leads to it, and the number of directories is limited.
"""

from __future__ import annotations

import fnmatch
import os
import stat
from collections import deque
from collections.abc import Iterator

DIRECTORIES_MAX = 10_000
_ANY_DEPTH = "**"


def matching(pattern: str, folder: str) -> Iterator[str]:
    """Yield paths that match a pattern, below `folder` unless it is absolute; `*` and `**` match no name with a dot
    before it, and `**` no file."""
    parts = [part for part in pattern.split("/") if part not in ("", ".")]
    waiting = deque([("/" if pattern.startswith("/") else folder, 0)])
    seen: set[tuple[int, int, int]] = set()
    while waiting and len(seen) < DIRECTORIES_MAX:
        place, at = waiting.popleft()
        try:
            status = os.stat(place)
        except OSError:
            continue
        if (look := (status.st_dev, status.st_ino, at)) in seen or not stat.S_ISDIR(status.st_mode):
            continue
        seen.add(look)
        for path, further in _steps(place, at, parts):
            if further == len(parts):
                yield path
            else:
                waiting.append((path, further))


def _steps(place: str, at: int, parts: list[str]) -> Iterator[tuple[str, int]]:
    """Yield the paths one part further, with the number of parts that they match."""
    part = parts[at]
    if part == _ANY_DEPTH:
        if at + 1 < len(parts):
            yield place, at + 1
        for entry in _entries(place):
            if not entry.name.startswith("."):
                yield entry.path, at
    elif any(sign in part for sign in "*?["):
        for entry in _entries(place):
            if fnmatch.fnmatchcase(entry.name, part) and entry.name.startswith(".") <= part.startswith("."):
                yield entry.path, at + 1
    else:
        yield os.path.join(place, part), at + 1


def _entries(place: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(place) as found:
            return list(found)
    except OSError:
        return []
