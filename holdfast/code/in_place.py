"""Comparison of a version with the source tree that it was taken from, so that ranks can run it at its own place."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection
from typing import NamedTuple

from holdfast.code.manifest import Manifest, ManifestEntry, digest_of
from holdfast.code.unchanged import Unchanged

SOURCES = (".py", ".pyi", ".pyx", ".pxd", ".so", ".sh", ".c", ".cc", ".cpp", ".h", ".hpp", ".cu", ".cuh")
HELD = (*SOURCES, ".yaml", ".yml", ".toml", ".cfg", ".ini")
"""Files that are held at the version. A script may write others beside itself, and needs them as it left them."""

TREE_BYTES_MAX = 32 << 20
"""Size of contents that are taken from a tree at once."""

_Stamp = tuple[int, int, int, int, int]


class _Compared(NamedTuple):
    """The last comparison, and the watch that began before it."""

    manifest: Manifest
    differing: tuple[str, ...]
    watch: Unchanged


class SourceTree:
    """The tree at the path `root`. What was compared once is compared again only when it has changed."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._known: dict[str, tuple[_Stamp, str]] = {}
        """Content hashes of files, with what was true of the files when they were read."""
        self._compared: _Compared | None = None

    def differing(self, manifest: Manifest) -> tuple[str, ...] | None:
        """Return the code files that differ from the version; None if the tree lacks one, or a link leads elsewhere.

        Raises OSError if the tree cannot be read.
        """
        before = self._compared
        if before is not None and before.manifest is manifest and before.watch.still():
            return before.differing
        self._compared = None
        held = [entry for entry in manifest.entries if _is_held(entry)]
        watch = self._watch(held)
        found = self._compare(held)
        if watch is not None and found is not None:
            self._compared = _Compared(manifest, found, watch)
        return found

    def _watch(self, held: Collection[ManifestEntry]) -> Unchanged | None:
        try:
            return Unchanged(self._root, [entry.path for entry in held])
        except OSError:
            # All files are looked at each time then.
            return None

    def _compare(self, held: Collection[ManifestEntry]) -> tuple[str, ...] | None:
        found = []
        for entry in held:
            same = self._is_same(entry)
            if same is None:
                return None
            if not same:
                found.append(entry.path)
        return tuple(found)

    def _is_same(self, entry: ManifestEntry) -> bool | None:
        path = f"{self._root}/{entry.path}"
        try:
            if entry.target is not None:
                return True if os.readlink(path) == entry.target else None
            now = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            if entry.target is not None:
                return None  # No link any more.
            raise error
        if not stat.S_ISREG(now.st_mode):
            return None
        if now.st_size != entry.size_bytes:
            return False
        return self._digest(path, now) == entry.sha256

    def _digest(self, path: str, now: os.stat_result) -> str:
        stamp = (now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns)
        before, digest = self._known.get(path, (None, ""))
        if before != stamp:
            digest = digest_of(_read(path, now.st_size))
            self._known[path] = stamp, digest
        return digest


def _is_held(entry: ManifestEntry) -> bool:
    return entry.is_executable or entry.target is not None or entry.path.endswith(HELD)


def from_tree(root: str, manifest: Manifest, wanted: Collection[str]) -> dict[str, bytes]:
    """Return contents (by hash) of the version that lie at their paths in the source tree, of `TREE_BYTES_MAX` at most.

    The maker of the version has had them all, so none is disclosed to its ranks.
    """
    found: dict[str, bytes] = {}
    total = 0
    for entry in manifest.entries:
        if entry.target is not None or entry.sha256 not in wanted or entry.sha256 in found:
            continue
        if total + entry.size_bytes > TREE_BYTES_MAX:
            break
        try:
            body = _read(f"{root}/{entry.path}", entry.size_bytes)
        except OSError:
            continue
        if digest_of(body) == entry.sha256:
            found[entry.sha256] = body
            total += len(body)
    return found


def _read(path: str, size_bytes: int) -> bytes:
    # What is no file any more must not be waited for.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        return file.read(size_bytes + 1) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""
