"""Paths that a user can reach. `python -I -S reach.py` runs this file as that user, with the standard library alone.

Standard input is a JSON list of [what, path, mode]; standard output the first that is closed, as [what, path, part].
"""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path

LASTING = -1
"""Mode: the path must be passable as far as it exists, and this user must not be able to replace a part of it."""


def closed_part(path: Path, mode: int = os.R_OK) -> Path | None:
    """Return the first directory of the path that this process cannot enter, else the path if it lacks `mode` there.

    None if the path is open. Links are followed, so that the directory that is closed is named and not a link to it.
    """
    path = Path(os.path.realpath(path))
    for part in reversed(path.parents):
        if not os.access(part, os.X_OK):
            return part
    return None if os.access(path, mode) else path


def unsafe_part(path: Path) -> Path | None:
    """Return the first directory above a path that this process cannot pass, or in which it can rename what others
    own; None: there is none.
    """
    for part in reversed(Path(os.path.realpath(path)).parents):
        if not os.access(part, os.F_OK):
            return None
        if not os.access(part, os.X_OK):
            return part
        if os.access(part, os.W_OK) and not part.stat().st_mode & stat.S_ISVTX:
            return part
    return None


def closed_to_others(path: Path) -> Path | None:
    """Return the first part of a path that users without a right of their own cannot pass, by its mode."""
    path = Path(os.path.realpath(path))
    for part in (*reversed(path.parents), path):
        if not part.stat().st_mode & stat.S_IXOTH:
            return part
    return None


def main() -> None:
    for what, path, mode in json.load(sys.stdin):
        part = unsafe_part(Path(path)) if mode == LASTING else closed_part(Path(path), mode)
        if part is not None:
            json.dump([what, path, str(part)], sys.stdout)
            return


if __name__ == "__main__":
    main()
