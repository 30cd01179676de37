"""Finds the files of a source tree that other users may not read. They do not become part of a code version.

All nodes, readers of the database and users of jobs can read a version. Keys that sign orders, backups, files with
passwords and whole clusters may lie in the directory of a project.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

CLOSED = "closed to other users"
OF_A_CLUSTER = "the directory of a cluster"
PRIVATE = (CLOSED, OF_A_CLUSTER)
"""Why such files are no part of a version."""

_CLUSTER_FILES = ("cluster.json", "secrets.json")


class PrivateFiles:
    """The private files below `root`. Paths are relative to it; of itself it does not matter who may read it."""

    def __init__(self, root: Path) -> None:
        self._root = root
        # A umask that closes all files marks none of them as private.
        self._readers = (stat.S_IRGRP | stat.S_IROTH) & ~_umask()
        self._closed = {"": False}
        self._clusters = {"": ""}

    def is_closed(self, path: str, mode: int) -> bool:
        """Return True if the file of this mode, or a folder above it, was closed to users who could read it else."""
        return bool(self._readers) and (not mode & self._readers or self._is_closed_folder(os.path.dirname(path)))

    def cluster(self, folder: str) -> str:
        """Return the directory of a cluster that the folder is or lies in; "" for none."""
        if folder not in self._clusters:
            is_one = all((self._root / folder / name).is_file() for name in _CLUSTER_FILES)
            self._clusters[folder] = self.cluster(os.path.dirname(folder)) or (folder if is_one else "")
        return self._clusters[folder]

    def _is_closed_folder(self, folder: str) -> bool:
        if folder not in self._closed:
            # Who may read a file needs to pass its folder.
            is_closed = not (self._root / folder).lstat().st_mode & (self._readers >> 2)
            self._closed[folder] = is_closed or self._is_closed_folder(os.path.dirname(folder))
        return self._closed[folder]


def _umask() -> int:
    """Return the umask of this process, which no call only reads."""
    umask = os.umask(0o077)
    os.umask(umask)
    return umask
