"""What git says of a source tree. Git is asked by its command; without it a tree is a directory like any other."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import msgspec

GIT_S = 30.0
_MISLEADING = frozenset({"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_OBJECT_DIRECTORY"})
"""Set in git's hooks, where they name the repository that the hook belongs to."""


class GitUnavailable(Exception):
    """Git cannot tell: it is not installed, this is no work tree, or it refuses; the message is git's own."""


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """The commit that a work tree is at, "" before the first; `is_dirty` if its files differ from it."""

    id: str
    is_dirty: bool


def toplevel(directory: Path) -> Path | None:
    """The work tree that the directory is in, if any."""
    try:
        said = _git(directory, "rev-parse", "--show-toplevel").rstrip(b"\n")
    except GitUnavailable:
        return None
    return Path(os.fsdecode(said)) if said else None


def commit(directory: Path) -> Commit:
    """The commit that the files of the directory belong to."""
    try:
        head = _git(directory, "rev-parse", "--verify", "--quiet", "HEAD").decode().strip()
    except GitUnavailable:
        head = ""
    changed = _git(directory, "status", "--porcelain", "-z", "--untracked-files=normal", "--", ".")
    return Commit(id=head, is_dirty=bool(changed))


def members(directory: Path) -> list[str]:
    """Paths of what is tracked, or untracked and not ignored; a trailing slash marks a work tree within this one."""
    return _paths(_git(directory, "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", "."))


def ignored(directory: Path) -> list[str]:
    """Paths of what is ignored; a directory that is ignored whole stands for all in it."""
    listed = _git(directory, "ls-files", "-z", "--others", "--ignored", "--exclude-standard", "--directory", "--", ".")
    return [path.rstrip("/") for path in _paths(listed)]


def _paths(listed: bytes) -> list[str]:
    return sorted({os.fsdecode(path) for path in listed.split(b"\0") if path})


def _git(directory: Path, *arguments: str) -> bytes:
    environment = {name: value for name, value in os.environ.items() if name not in _MISLEADING}
    try:
        done = subprocess.run(
            # Looking must not write: somebody else may hold the index.
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
