"""Snapshots of source trees: the files that belong to the code, and their contents.

In a git work tree: tracked files, and new ones that are not ignored. Elsewhere: all files but hidden ones and those
left by tools. Paths that are too large, private, lead out of the tree or are ignored are listed as left out; they are
reached where they lie.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from holdfast.code import git
from holdfast.code.git import Commit, GitUnavailable
from holdfast.code.in_place import SOURCES
from holdfast.code.manifest import (
    CODE_BYTES_MAX,
    FILE_BYTES_MAX,
    FILES_MAX,
    InvalidManifest,
    Manifest,
    ManifestEntry,
    digest_of,
    manifest_of,
    path_problem,
    target_problem,
    version_of,
)
from holdfast.code.private_files import CLOSED, OF_A_CLUSTER, PrivateFiles

JUNK = frozenset(
    {
        *(".git", ".hg", ".svn", ".holdfast", ".idea", ".vscode", ".DS_Store", ".ipynb_checkpoints"),
        *(".venv", "venv", ".tox", ".nox", ".eggs", "node_modules", "__pycache__"),
        *(".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis"),
    }
)
"""Names that tools leave in a source tree: neither code nor anything that a script reads."""
_NOT_CODE = frozenset(("checkpoints", "wandb", "lightning_logs", "mlruns"))
"""Directories that training leaves in a source tree, for trees without git."""
OUTSIDE_MAX = 64
"""Maximum number of paths beside the code that become links to where they lie."""
_SHOWN = 3


class SnapshotLimits(NamedTuple):
    files_max: int
    file_bytes_max: int
    code_bytes_max: int


NAMED_TREE_LIMITS = SnapshotLimits(FILES_MAX, FILE_BYTES_MAX, CODE_BYTES_MAX)
"""Limits for a tree that the user named."""
FOUND_TREE_LIMITS = SnapshotLimits(5_000, 4 << 20, 16 << 20)
"""For a tree that was found: without a request, a user does not wait for more."""


class SnapshotRefused(ValueError):
    """The tree cannot be kept as a version; the message names the cause and the cure."""


class LeftOut(NamedTuple):
    """A path that is not part of the version, and why."""

    path: str
    why: str


class Snapshot(NamedTuple):
    """A version of the code in `root`. `contents` maps hashes to contents of files."""

    root: Path
    manifest: Manifest
    version: str
    contents: dict[str, bytes]
    commit: Commit | None
    left_out: tuple[LeftOut, ...]

    @property
    def outside(self) -> tuple[str, ...]:
        """Paths beside the code; those nearest to the root if there are many."""
        paths = sorted((left.path for left in self.left_out), key=lambda path: (path.count("/"), path))
        return tuple(sorted(paths[:OUTSIDE_MAX]))


def snapshot(root: Path, limits: SnapshotLimits = NAMED_TREE_LIMITS, exclude: Collection[Path] = ()) -> Snapshot:
    """Take a snapshot of the code in `root`, without the directories `exclude` (a cluster's, a job's). Raises
    SnapshotRefused if there are no files, too many, too much, or one that cannot be read.
    """
    root = Path(os.path.realpath(root))
    if not root.is_dir():
        raise SnapshotRefused(f"{root} is not a directory")
    walk = _Walk(root, limits, {Path(os.path.realpath(path)) for path in exclude})
    # Checked before files are read: a tree that is too large must not cost the time of `git status`.
    paths = walk.paths()
    entries, contents = walk.read(paths)
    try:
        manifest = manifest_of(entries)
    except InvalidManifest as error:
        why = "it has no code files" if not entries else str(error)
        raise SnapshotRefused(f"{root} cannot be kept as a version of the code: {why}") from error
    return Snapshot(root, manifest, version_of(manifest), contents, walk.commit(), tuple(sorted(walk.left_out)))


def tree_of(script: Path, cwd: Path) -> Path | None:
    """Return the tree of a script: its git work tree, else `cwd` if that contains it, else its directory. None if that
    is a home directory or the root directory, which hold much besides code.
    """
    script, here = script.resolve(), cwd.resolve()
    candidates = [git.toplevel(script.parent), here if script.is_relative_to(here) else None, script.parent]
    no_trees = (Path.home().resolve(), Path("/"), None)
    return next((tree for tree in candidates if tree not in no_trees), None)


class _Walk:
    def __init__(self, root: Path, limits: SnapshotLimits, exclude: set[Path]) -> None:
        self._root = root
        self._limits = limits
        self._exclude = exclude
        self._with_git = git.toplevel(root) is not None
        self._tracked: set[str] = set()
        self._private = PrivateFiles(root)
        self.left_out: set[LeftOut] = set()

    def commit(self) -> Commit | None:
        """Return the commit, None without git."""
        try:
            return git.commit(self._root) if self._with_git else None
        except GitUnavailable:
            return None

    def paths(self) -> list[str]:
        """Return the candidates, files and links, in order."""
        found: list[str] = []
        for path in self._by_git("") if self._with_git else self._by_hand(""):
            found.append(path)
            if len(found) > self._limits.files_max:
                raise SnapshotRefused(self._too_many(found))
        return found

    def read(self, paths: list[str]) -> tuple[list[ManifestEntry], dict[str, bytes]]:
        entries: list[ManifestEntry] = []
        contents: dict[str, bytes] = {}
        sizes: dict[str, int] = {}
        total_bytes = 0
        for path in paths:
            try:
                found = self._entry(path)
            except FileNotFoundError:
                continue  # Deleted since it was listed, or deleted but still in git's index.
            except OSError as error:
                raise SnapshotRefused(f"{self._root / path} cannot be read: {error.strerror}") from error
            if found is None:
                continue
            entry, content = found
            entries.append(entry)
            if entry.target is None:
                contents[entry.sha256] = content
                sizes[path] = len(content)
                total_bytes += len(content)
            if total_bytes > self._limits.code_bytes_max:
                raise SnapshotRefused(self._too_much(sizes))
        return entries, contents

    def _by_git(self, below: str) -> Iterator[str]:
        try:
            members, ignored = git.members(self._root / below), git.ignored(self._root / below)
        except GitUnavailable as error:
            if below:
                raise SnapshotRefused(f"git cannot list {self._root / below}: {error}") from error
            self._with_git = False
            yield from self._by_hand("")
            return
        for path in ignored:
            if not self._is_junk(path) and not self._is_excluded(self._root / below / path):
                self.left_out.add(LeftOut(below + path, "ignored by git"))
        for path, is_tracked in members:
            whole = below + path
            if self._is_junk(path.rstrip("/")) or self._is_excluded(self._root / whole):
                continue
            if cluster := self._private.cluster(os.path.dirname(whole)):
                self.left_out.add(LeftOut(cluster, OF_A_CLUSTER))
                continue
            if is_tracked:
                self._tracked.add(whole)
            if path.endswith("/") or ((self._root / whole).is_dir() and not (self._root / whole).is_symlink()):
                # A submodule or a nested clone has a separate index.
                yield from self._by_git(whole.rstrip("/") + "/")
            else:
                yield whole

    def _by_hand(self, below: str) -> Iterator[str]:
        try:
            found = sorted(os.scandir(self._root / below), key=lambda item: item.name)
        except OSError as error:
            self.left_out.add(LeftOut(below.rstrip("/") or ".", error.strerror or "cannot be read"))
            return
        for item in found:
            path = below + item.name
            if self._is_junk(item.name) or self._is_excluded(self._root / path):
                continue
            if item.name.startswith("."):
                self.left_out.add(LeftOut(path, "hidden"))  # Hidden files hold settings and credentials.
                continue
            if item.is_dir(follow_symlinks=False):
                if item.name in _NOT_CODE:
                    self.left_out.add(LeftOut(path, "output of training"))
                elif self._private.cluster(path):
                    self.left_out.add(LeftOut(path, OF_A_CLUSTER))
                else:
                    yield from self._by_hand(path + "/")
            else:
                yield path

    def _entry(self, path: str) -> tuple[ManifestEntry, bytes] | None:
        place = self._root / path
        about = place.lstat()
        if problem := path_problem(path) or _encoding_problem(path):
            raise SnapshotRefused(f"{str(place)!r} cannot be part of a version: {problem}; rename it")
        if stat.S_ISLNK(about.st_mode):
            target = os.readlink(place)
            if problem := target_problem(path, target):
                self.left_out.add(LeftOut(path, f"a link to {target}: {problem}"))
                return None
            return ManifestEntry(path=path, target=target), b""
        if not stat.S_ISREG(about.st_mode):
            self.left_out.add(LeftOut(path, "not a regular file"))
            return None
        if self._is_private(path, about.st_mode):
            self.left_out.add(LeftOut(path, CLOSED))
            return None
        content = self._content(place) if about.st_size <= self._limits.file_bytes_max else b""
        if content is None:
            self.left_out.add(LeftOut(path, "a link leads to it"))
            return None
        if (nbytes := max(about.st_size, len(content))) > self._limits.file_bytes_max:
            self.left_out.add(LeftOut(path, f"{_mib(nbytes)}, over {_mib(self._limits.file_bytes_max)}"))
            return None
        is_executable = bool(about.st_mode & 0o100)
        digest = digest_of(content)
        return ManifestEntry(path=path, sha256=digest, size_bytes=len(content), is_executable=is_executable), content

    def _content(self, place: Path) -> bytes | None:
        """Return a file's bytes, one more than the limit at most; None if it is reached by a link, or is no file now.

        Any user who may write in the tree can replace the file, or a directory above it, by a link. What this process
        may read, and they may not, would become code that their job reads.
        """
        descriptor = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            led_to = os.readlink(f"/proc/self/fd/{descriptor}")
            if led_to not in (str(place), f"{place} (deleted)") or not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return None
            return file.read(self._limits.file_bytes_max + 1)

    def _is_private(self, path: str, mode: int) -> bool:
        # Editors and copies may close sources, which are code all the same, and so is what git tracks.
        return path not in self._tracked and not path.endswith(SOURCES) and self._private.is_closed(path, mode)

    def _is_junk(self, path: str) -> bool:
        return path.endswith(".pyc") or any(part in JUNK for part in path.split("/"))

    def _is_excluded(self, path: Path) -> bool:
        return path in self._exclude or any(above in self._exclude for above in path.parents)

    def _too_many(self, found: list[str]) -> str:
        by_folder = Counter(path.partition("/")[0] if "/" in path else "." for path in found)
        fullest = ", ".join(f"{folder} ({count})" for folder, count in by_folder.most_common(_SHOWN))
        return (
            f"{self._root} has more than {self._limits.files_max} files that may belong to its code, most of them in "
            f"{fullest}: have git ignore files that are not code, or name a directory that holds only code"
        )

    def _too_much(self, sizes: dict[str, int]) -> str:
        largest = sorted(sizes, key=lambda path: -sizes[path])[:_SHOWN]
        named = ", ".join(f"{path} ({_mib(sizes[path])})" for path in largest)
        return (
            f"the code in {self._root} has more than {_mib(self._limits.code_bytes_max)}; the largest files are "
            f"{named}: have git ignore files that are not code, or name a directory that holds only code"
        )


def _encoding_problem(path: str) -> str:
    try:
        path.encode()
    except UnicodeEncodeError:
        return "its name is not UTF-8"
    return ""


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.1f} MiB"
