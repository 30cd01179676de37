"""Removal of directory trees that others could write into: of any depth, and never through a link.

`shutil.rmtree` calls itself for each level and holds a descriptor for it, so a thousand levels end it with an error
that is no OSError. Here deep directories are moved up to the top, and two descriptors are open at a time.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(path: Path) -> None:
    """Remove a directory and all that is in it. What cannot be removed stays, and the first reason is raised (OSError).

    A link in the place of the directory raises too.
    """
    top = os.open(path, _DIRECTORY)
    failed: dict[str, OSError] = {}
    try:
        while names := os.listdir(top):
            if failed.keys() >= set(names):
                raise next(iter(failed.values()))
            for name in names:
                try:
                    _empty_and_remove(top, name)
                except FileNotFoundError:
                    continue
                except OSError as error:
                    failed[name] = error
    finally:
        os.close(top)
    path.rmdir()


def _empty_and_remove(top: int, name: str) -> None:
    if not _is_directory(top, name):
        os.unlink(name, dir_fd=top)
        return
    here = os.open(name, _DIRECTORY, dir_fd=top)
    try:
        for inner in os.listdir(here):
            with contextlib.suppress(FileNotFoundError):
                if _is_directory(here, inner):
                    os.rename(inner, secrets.token_hex(16), src_dir_fd=here, dst_dir_fd=top)
                else:
                    os.unlink(inner, dir_fd=here)
    finally:
        os.close(here)
    os.rmdir(name, dir_fd=top)


def _is_directory(folder: int, name: str) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
