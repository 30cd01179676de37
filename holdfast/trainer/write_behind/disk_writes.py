"""The disk: what lies there, whether a file can be written later at all, and its publication by one rename."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from holdfast.trainer.write_behind import torch_format
from holdfast.trainer.write_behind.disk_state import of_status, state_of, status_of
from holdfast.trainer.write_behind.saved_files import DiskState, Kind, SavedFile, Verdict, verdict

PARTS_PREFIX = ".holdfast-"
"""Begins the name of the directory, beside a file, in which it is written until it is whole. A number of the file's
name follows, for other ranks write other files there.
"""
FREE_BYTES_MIN = 16 << 20
"""Stay free: with less the script's own save meets the full disk."""


class Target(NamedTuple):
    path: str
    """Absolute, without links."""
    before: DiskState | None
    mode: int | None


class NotReplaceable(Exception):
    """The file must be written as the script writes it; the message is the reason."""


def target_of(path: str) -> Target:
    """Look at the place of a file to be. Raises NotReplaceable: a file there cannot be replaced by a rename."""
    real = os.path.realpath(path)
    folder = os.path.dirname(real)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise NotReplaceable(f"no file can be made in {folder}")
    found = status_of(real)
    if found is None:
        return Target(real, None, None)
    if not stat.S_ISREG(found.st_mode):
        raise NotReplaceable(f"{path} is no regular file")
    if found.st_nlink != 1:
        raise NotReplaceable(f"{path} has more than one name")
    if found.st_uid != os.geteuid():
        raise NotReplaceable(f"{path} belongs to another user")
    if not os.access(real, os.W_OK):
        raise NotReplaceable(f"{path} cannot be written")
    return Target(real, of_status(found), stat.S_IMODE(found.st_mode))


def entry_of(path: str) -> str:
    """Return the entry of a directory that a path names, which may be a link."""
    folder, name = os.path.split(os.path.abspath(path))
    return os.path.join(os.path.realpath(folder), name)


def has_room(path: str, nbytes: int) -> bool:
    """Return True if the file system of this path has room for a file of `nbytes` bytes."""
    found = os.statvfs(os.path.dirname(path))
    return found.f_bavail * found.f_frsize >= nbytes + FREE_BYTES_MIN


def publish(file: SavedFile, tensors: Sequence[torch.Tensor]) -> Verdict:
    """Write the file beside its place and move it there whole, unless the place has changed since the save.

    Raises OSError: the disk's refusal.
    """
    found = verdict(file.before, state_of(file.path), is_written=False)
    if found is not Verdict.WRITE:
        return found
    folder, name = os.path.split(file.path)
    with tempfile.TemporaryDirectory(prefix=_parts_prefix(name), dir=folder) as parts:
        part = os.path.join(parts, name)
        if file.kind is Kind.TORCH:
            _as_oserror(part, file, tensors)
        else:
            torch_format.write_raw(part, file.records, tensors)
        if file.mode is not None:
            os.chmod(part, file.mode)
        os.rename(part, file.path)
    return Verdict.WRITE


def remove_parts(path: str) -> None:
    """Remove what a writer of this file that was killed has left beside it."""
    folder, name = os.path.split(path)
    with contextlib.suppress(OSError):
        for parts in Path(folder).glob(f"{_parts_prefix(name)}*"):
            shutil.rmtree(parts)


def _parts_prefix(name: str) -> str:
    return f"{PARTS_PREFIX}{zlib.crc32(os.fsencode(name)):08x}-"


def _as_oserror(part: str, file: SavedFile, tensors: Sequence[torch.Tensor]) -> None:
    """Write an archive; torch's writer raises RuntimeError for what the disk refuses."""
    try:
        torch_format.write(part, file.records, tensors, is_named=file.is_named)
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise OSError(_errno_now(part), f"{reason} ({file.path})") from error


def _errno_now(part: str) -> int:
    """Raise the error of a write to this file, which torch does not report."""
    try:
        with open(part, "ab") as probe:
            probe.write(bytes(1 << 16))
            probe.flush()
    except OSError as error:
        return error.errno or 5
    return 5
