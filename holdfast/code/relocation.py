"""Translation of paths in a source tree to a version of it in another directory. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable

ROOT_VARIABLE = "HOLDFAST_CODE_ROOT"
"""Environment variable: the source tree that a job's code was taken from."""
DIRECTORY_VARIABLE = "HOLDFAST_CODE_DIR"
"""Environment variable: the directory of the version that a rank runs."""
VERSION_VARIABLE = "HOLDFAST_CODE_VERSION"


def relocate(path: str, root: str, place: str, cwd: str) -> str:
    """Return the path moved to `place` if it leads into the tree `root`, else unchanged. Relative paths start at
    `cwd`."""
    whole = posixpath.normpath(posixpath.join(cwd, path))
    root = posixpath.normpath(root)
    if whole == root:
        return place
    prefix = root.rstrip("/") + "/"
    return posixpath.join(place, whole.removeprefix(prefix)) if whole.startswith(prefix) else path


def relocate_search_path(
    entries: Iterable[str], root: str, place: str, cwd: str, is_there: Callable[[str], bool]
) -> list[str]:
    """Return a search path whose entries in the tree lead into `place`, if they exist there. A virtual environment in
    the tree, for example, is not part of its code.
    """
    found = ((entry, relocate(entry, root, place, cwd) if entry else entry) for entry in entries)
    return [new if new != entry and is_there(new) else entry for entry, new in found]
