"""Unpacking of a version of the code into a directory. `manifest.decode` has checked the manifest."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from holdfast.code.manifest import Manifest, ManifestEntry, digest_of, path_problem


class WrongContent(Exception):
    """Bytes differ from those in the manifest; the message names the file, `digest` is the expected hash."""

    def __init__(self, message: str, digest: str) -> None:
        super().__init__(message)
        self.digest = digest


def unpack(
    manifest: Manifest,
    content: Callable[[str], bytes],
    target: Path,
    *,
    outside: Iterable[str] = (),
    outside_root: Path | None = None,
    read_only: bool = True,
) -> None:
    """Create `target`, which must not exist, with all files of the manifest or none.

    `content` returns the bytes of a hash. The paths in `outside` are not part of the code: they become links to where
    they lie below `outside_root`, so that a script finds them beside itself as before. With `read_only`, a rank that
    writes to its source gets an error (unless it is root). Raises WrongContent if `content` returned other bytes,
    OSError if the disk is full or fails, or `target` exists.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        made: set[str] = set()
        for entry in manifest.entries:
            _write(entry, content, part, 0o444 if read_only else 0o644, made)
        if outside_root is not None:
            for path in outside:
                _link_outside(part, path, outside_root)
        part.chmod(0o755)
        part.rename(target)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


def damage(manifest: Manifest, directory: Path) -> Iterator[str]:
    """Yield the paths whose files are missing or differ from the manifest."""
    for entry in manifest.entries:
        path = directory / entry.path
        try:
            if entry.target is not None:
                sound = os.readlink(path) == entry.target
            else:
                is_executable = bool(path.stat().st_mode & 0o100)
                sound = digest_of(path.read_bytes()) == entry.sha256 and is_executable == entry.is_executable
        except OSError:
            sound = False
        if not sound:
            yield entry.path


def _write(entry: ManifestEntry, content: Callable[[str], bytes], root: Path, mode: int, made: set[str]) -> None:
    folder = entry.path.rpartition("/")[0]
    if folder not in made:
        (root / folder).mkdir(parents=True, exist_ok=True)
        made.add(folder)
    path = f"{root}/{entry.path}"
    if entry.target is not None:
        os.symlink(entry.target, path)
        return
    body = content(entry.sha256)
    if len(body) != entry.size_bytes or digest_of(body) != entry.sha256:
        raise WrongContent(f"{entry.path}: {len(body)} bytes that are not those of the version", entry.sha256)
    mode |= 0o111 if entry.is_executable else 0
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    with open(descriptor, "wb", buffering=0) as file:
        file.write(body)
        os.fchmod(descriptor, mode)


def _link_outside(root: Path, path: str, outside_root: Path) -> None:
    if path_problem(path):
        return
    place = root / path
    # Behind a link of the tree, it would be made somewhere else.
    if os.path.lexists(place) or any(above.is_symlink() or above.is_file() for above in _between(root, place)):
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(outside_root / path)


def _between(root: Path, place: Path) -> list[Path]:
    return [above for above in place.parents if above != root and above.is_relative_to(root)]
