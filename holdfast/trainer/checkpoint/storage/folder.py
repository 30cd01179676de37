"""One checkpoint's files, wherever they lie: the manifest, the parts, and whether they are all there."""

from __future__ import annotations

import errno
import io
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from holdfast.decoding import UNREADABLE
from holdfast.trainer.checkpoint.errors import CheckpointError, CheckpointMismatch, DamagedCheckpoint
from holdfast.trainer.checkpoint.layout.manifest import (
    FORMAT,
    MANIFEST,
    UNSUMMED_FORMAT,
    CheckpointManifest,
    decode_manifest,
)
from holdfast.trainer.checkpoint.layout.manifest_checks import check_manifest

_GET_BYTES_MAX = 1 << 29
"""Maximum size of a file that is read at once. A manifest has some 200 bytes for each part."""


class Folder(Protocol):
    """A checkpoint's files, for reading. What cannot be read is a CheckpointError, what is broken a DamagedCheckpoint:
    a missing file is damage to `get`, not to `read`, since a reader of parts has seen them listed.
    """

    @property
    def name(self) -> str:
        """Location for display."""
        ...

    def sizes(self) -> dict[str, int]: ...

    def modified_at(self) -> float | None:
        """Return the time of the last change in seconds of Unix time; None if not known."""
        ...

    def get(self, name: str) -> bytes: ...

    def read(self, name: str, offset: int, size: int) -> memoryview:
        """Return a piece of a file, in writable memory owned by the caller. Raises DamagedCheckpoint when short."""
        ...


class StepState(StrEnum):
    COMPLETE = "complete"
    DAMAGED = "damaged"
    ROLLED_BACK = "rolled-back"
    UNFINISHED = "unfinished"


class FoundCheckpoint(NamedTuple):
    """A checkpoint, or what is left of one. `state` follows from its place; no file was read."""

    step: int
    state: StepState
    folder: Folder


def read_manifest(folder: Folder) -> CheckpointManifest:
    """Read the manifest; raise DamagedCheckpoint, or CheckpointMismatch if another version wrote it."""
    record = folder.get(MANIFEST)
    try:
        manifest = decode_manifest(record)
    except (*UNREADABLE, DamagedCheckpoint) as error:
        raise DamagedCheckpoint(f"{folder.name}: {MANIFEST} cannot be read: {error}") from error
    if manifest.format not in (UNSUMMED_FORMAT, FORMAT):
        raise CheckpointMismatch(
            f"{folder.name} has checkpoint format {manifest.format}, this Holdfast reads {FORMAT}: restore it "
            "with the version that wrote it, or name another directory"
        )
    check_manifest(manifest, folder.name)
    return manifest


def missing_or_cut(folder: Folder, manifest: CheckpointManifest) -> Iterator[tuple[str, str]]:
    """Yield the parts that are not there in full size, and what is wrong with each."""
    sizes = folder.sizes()
    for part in manifest.parts:
        size = sizes.get(part.name)
        if size is None:
            yield part.name, os.strerror(errno.ENOENT)
        elif size != part.size:
            yield part.name, f"has {size} bytes, the manifest says {part.size}"


def whole_manifest(folder: Folder) -> CheckpointManifest:
    """Return the manifest, if every part is there in full size. Raises DamagedCheckpoint."""
    manifest = read_manifest(folder)
    for name, problem in missing_or_cut(folder, manifest):
        raise DamagedCheckpoint(f"{folder.name}: part {name}: {problem}")
    return manifest


class DirectoryFolder:
    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def name(self) -> str:
        return str(self._path)

    def sizes(self) -> dict[str, int]:
        sizes = {}
        try:
            for entry in os.scandir(self._path):
                # Another rank may rename its part or remove its note meanwhile.
                with suppress(FileNotFoundError):
                    sizes[entry.name] = entry.stat().st_size
        except OSError as error:
            raise _unreadable(self._path, error, missing_is_damage=True) from error
        return sizes

    def modified_at(self) -> float | None:
        try:
            return self._path.stat().st_mtime
        except OSError:
            return None

    def get(self, name: str) -> bytes:
        try:
            with _opened(self._path / name) as file:
                if os.fstat(file.fileno()).st_size > _GET_BYTES_MAX:
                    raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
                return file.read(_GET_BYTES_MAX)
        except OSError as error:
            raise _unreadable(self._path / name, error, missing_is_damage=True) from error

    def read(self, name: str, offset: int, size: int) -> memoryview:
        path = self._path / name
        done = 0
        try:
            target = np.empty(size, np.uint8).data  # not zeroed first, unlike a bytearray
            with _opened(path) as file:
                file.seek(offset)
                while done < size and (count := file.readinto(target[done:])):
                    done += count
        except MemoryError as error:
            raise CheckpointError(f"{path}: there is no memory for {size} bytes of it") from error
        except OSError as error:
            raise _unreadable(path, error, missing_is_damage=False) from error
        if done < size:
            raise DamagedCheckpoint(f"{path}: ends after {offset + done} bytes, {offset + size} are needed")
        return target


def _opened(path: Path) -> io.FileIO:
    """Open a file for reading, and nothing else: at a pipe its reader would wait. Raises OSError."""

    def opener(name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NONBLOCK | os.O_CLOEXEC)

    file = io.FileIO(str(path), "rb", opener=opener)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is no file")
    return file


def _unreadable(path: Path, error: OSError, *, missing_is_damage: bool) -> CheckpointError:
    # A stale mount, a missing right, or a failing disk of one node must not make a job discard whole checkpoints. EIO
    # is what a file server that is gone gives as well, and it shows nothing about what the others would read.
    if missing_is_damage and isinstance(error, FileNotFoundError):
        return DamagedCheckpoint(f"{path}: {error.strerror}")
    if isinstance(error, FileNotFoundError):
        return CheckpointError(
            f"{path} is not here, though rank 0 sees it: the checkpoint directory must be shared by all nodes; "
            "mount it at the same path everywhere, or set HOLDFAST_JOB_DIR to one that is"
        )
    return CheckpointError(f"{path} cannot be read: {error.strerror}; check the mount and its permissions")
