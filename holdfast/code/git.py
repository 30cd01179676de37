"""Queries to git, by its command, about a source tree."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import msgspec

GIT_S = 30.0
_MISLEADING = frozenset({"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_OBJECT_DIRECTORY"})
"""Set in git's hooks, where they name the repository that the hook belongs to."""


class GitUnavailable(Exception):
    """Git is not installed, the directory is not in a work tree, or git refuses; the message is git's own."""


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """The commit of a work tree, "" before the first; `is_dirty` if files differ from it."""

    id: str
    is_dirty: bool


def toplevel(directory: Path) -> Path | None:
    """Return the root of the work tree that contains the directory, None if there is none."""
    try:
        root = _git(directory, "rev-parse", "--show-toplevel").rstrip(b"\n")
    except GitUnavailable:
        return None
    return Path(os.fsdecode(root)) if root else None


def commit(directory: Path) -> Commit:
    """Return the commit of the directory. Raises GitUnavailable."""
    try:
        head = _git(directory, "rev-parse", "--verify", "--quiet", "HEAD").decode().strip()
    except GitUnavailable:
        head = ""
    changed = _git(directory, "status", "--porcelain", "-z", "--untracked-files=normal", "--", ".")
    return Commit(id=head, is_dirty=bool(changed))


def members(directory: Path) -> list[tuple[str, bool]]:
    """Return tracked paths, True, and untracked ones that are not ignored, False; a trailing slash marks a nested work
    tree.
    """
    listed = _git(directory, "ls-files", "-z", "-t", "--cached", "--others", "--exclude-standard", "--", ".")
    # A letter and a space are before each: `?` for untracked.
    return sorted({(path[2:], not path.startswith("?")) for path in _paths(listed)})


def ignored(directory: Path) -> list[str]:
    """Return ignored paths; a wholly ignored directory represents everything in it."""
    listed = _git(directory, "ls-files", "-z", "--others", "--ignored", "--exclude-standard", "--directory", "--", ".")
    return [path.rstrip("/") for path in _paths(listed)]


def _paths(listed: bytes) -> list[str]:
    return sorted({os.fsdecode(path) for path in listed.split(b"\0") if path})


def _git(directory: Path, *arguments: str) -> bytes:
    environment = {name: value for name, value in os.environ.items() if name not in _MISLEADING}
    try:
        done = subprocess.run(
            # A query must not write: another process may hold the lock on the index.
            ("git", "--no-optional-locks", "-C", str(directory), *arguments),
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=GIT_S,
            env=environment | {"LC_ALL": "C"},
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise GitUnavailable(str(error)) from error
    if done.returncode:
        raise GitUnavailable(os.fsdecode(done.stderr).strip() or f"git ended with {done.returncode}")
    return done.stdout
