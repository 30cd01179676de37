"""Reads the state of a path on the disk."""

from __future__ import annotations

import os
import stat

from holdfast.trainer.write_behind.saved_files import DiskState


def state_of(path: str) -> DiskState | None:
    """Return what is at this path; None if nothing is. What is no regular file is equal to nothing else."""
    found = status_of(path)
    return None if found is None else of_status(found)


def status_of(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except FileNotFoundError:
        return None


def of_status(found: os.stat_result) -> DiskState:
    regular = stat.S_ISREG(found.st_mode)
    return DiskState(found.st_ino if regular else -1, found.st_size, found.st_mtime_ns)
