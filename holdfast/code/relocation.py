"""Where the paths of a source tree are in a version of it that lies somewhere else. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable

ROOT_VARIABLE = "HOLDFAST_CODE_ROOT"
"""The source tree that a job's code was taken from."""
DIRECTORY_VARIABLE = "HOLDFAST_CODE_DIR"
"""The directory with the version that a rank runs."""
VERSION_VARIABLE = "HOLDFAST_CODE_VERSION"


def relocate(path: str, root: str, place: str, cwd: str) -> str:
    """The path in `place` if it leads into the tree `root`, otherwise as it is. A relative one begins at `cwd`."""
    whole = posixpath.normpath(posixpath.join(cwd, path))
    root = posixpath.normpath(root)
    if whole == root:
        return place
    prefix = root.rstrip("/") + "/"
    return posixpath.join(place, whole.removeprefix(prefix)) if whole.startswith(prefix) else path


def relocate_search_path(
    entries: Iterable[str], root: str, place: str, cwd: str, is_there: Callable[[str], bool]
) -> list[str]:
    """A search path whose entries in the tree lead into `place`, where that has them.

    A virtual environment that lies in the tree is no part of its code.
    """
    found = ((entry, relocate(entry, root, place, cwd) if entry else entry) for entry in entries)
    return [new if new != entry and is_there(new) else entry for entry, new in found]
