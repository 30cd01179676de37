"""Disk test: a file is written, synced and read back, in the job's directory and in the node's own."""

from __future__ import annotations

import errno
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import xxhash

from holdfast_checks import numbers
from holdfast_checks.result import StageResult, StageTask, failed, passed

FILE_BYTES = 4 * 1024 * 1024
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_UNREACHABLE = (errno.ESTALE, errno.EHOSTDOWN, errno.ETIMEDOUT, errno.ENOTCONN, errno.EREMOTEIO)
PART = "disk-check-"


def run(task: StageTask, begin: Callable[[], None]) -> Sequence[StageResult]:
    """Write and read a file in each directory of the job and the node, and report the result of each."""
    begin()
    context = task.context
    # A directory in a store (`s3://...`) is on none of this node's disks.
    directories = dict.fromkeys(
        name for name in (context.job_directory, context.node_directory) if name and "://" not in name
    )
    return [_written(Path(name)) for name in directories]


def _written(directory: Path) -> StageResult:
    written = numbers.bits(1, FILE_BYTES // 8).tobytes()
    began = time.monotonic()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        read = _read_back(directory, written)
    except OSError as error:
        return failed(_symptom(error), f"{directory}: {error.strerror or error}", device=str(directory))
    if xxhash.xxh3_64_digest(read) != xxhash.xxh3_64_digest(written):
        text = f"{directory}: what was read is not what was written ({len(read)} of {len(written)} bytes)"
        return failed("disk_fault", text, device=str(directory))
    took_s = time.monotonic() - began
    return passed(device=str(directory), value=2 * FILE_BYTES / took_s / 1e6, unit="MB/s")


def _read_back(directory: Path, written: bytes) -> bytes:
    with tempfile.NamedTemporaryFile(dir=directory, prefix=PART) as file:
        file.write(written)
        file.flush()
        os.fsync(file.fileno())
        # From the disk, not from the page cache.
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        file.seek(0)
        return file.read()


def _symptom(error: OSError) -> str:
    if error.errno in _DISK_FULL:
        return "insufficient_disk_space"
    return "filesystem_mount" if error.errno in _UNREACHABLE else "disk_fault"
