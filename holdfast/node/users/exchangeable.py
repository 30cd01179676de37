"""Parts of a path that another user could exchange for something else."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from holdfast.node.users.own_users import passed


def others_part(path: Path) -> str | None:
    """Return the first part of a path, links included, that belongs to another user but root, or is a directory in
    which others can rename what this user owns; None if there is none, as far as the path exists.

    Raises own_users.Exchanged after too many links, OSError.
    """
    for part, found in passed(path.absolute()):
        if found is not None and (found.st_uid not in (0, os.geteuid()) or _can_be_renamed_in(found)):
            return part
    return None


def _can_be_renamed_in(directory: os.stat_result) -> bool:
    """Return True if another user can. A group that is this process's own has, as a rule, one member."""
    mode = directory.st_mode
    if not stat.S_ISDIR(mode) or mode & stat.S_ISVTX:
        return False
    return bool(mode & stat.S_IWOTH or (mode & stat.S_IWGRP and directory.st_gid not in (0, os.getegid())))
