"""Search for the training logs of this node's ranks: files that they and their children have open (/proc).

So no configuration is needed, and every log found belongs to this job. Weights & Biases writes from a child process of
the rank.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from holdfast_agent.training_logs.patterns import matching

TENSORBOARD_MARK = "tfevents"
WANDB_SUFFIX = ".wandb"
PROCESSES_MAX = 512
"""Maximum number of processes of one rank: data loaders have many workers."""
FILES_OF_GLOB_MAX = 64


class FileKey(msgspec.Struct, frozen=True):
    """A file by device and inode, whatever its name."""

    device: int
    inode: int


class FoundLog(msgspec.Struct, frozen=True, kw_only=True):
    """A training log. `way` is the path to open, `path` its name as text; `rank` writes it. `is_named`: a script or its
    user named the path, and no process is known to have it open.
    """

    key: FileKey
    rank: int
    way: str
    path: str
    is_named: bool = False


def kind_of(path: str) -> str:
    """Return `tensorboard` or `wandb` by the file's name, "" for other files."""
    name = os.path.basename(path)
    if TENSORBOARD_MARK in name:
        return "tensorboard"
    return "wandb" if name.endswith(WANDB_SUFFIX) else ""


def open_logs(ranks: dict[int, int]) -> list[FoundLog]:
    """Return the training logs that these ranks (rank -> pid) have open for writing."""
    return [found for rank, pid in sorted(ranks.items()) for found in _of_rank(rank, pid)]


def logs_at(paths: Mapping[str, int]) -> list[FoundLog]:
    """Return the training logs at these paths, with their ranks. Some writers reopen their file for each piece."""
    found: list[FoundLog] = []
    for path, rank in paths.items():
        if kind_of(path) and (status := _stat(path)) is not None:
            found.append(_found(status, rank, path, path, is_named=True))
    return found


def matching_logs(patterns: Iterable[str], folder: str, rank: int) -> list[FoundLog]:
    """Return the newest training logs whose paths match."""
    paths = {path for pattern in patterns for path in matching(pattern, folder)}
    found = [(status.st_mtime, path) for path in paths if kind_of(path) and (status := _stat(path)) is not None]
    return logs_at({path: rank for _, path in sorted(found)[-FILES_OF_GLOB_MAX:]})


def _of_rank(rank: int, pid: int) -> Iterator[FoundLog]:
    waiting = [pid]
    for _ in range(PROCESSES_MAX):
        if not waiting:
            return
        here = waiting.pop()
        waiting += _children(here)
        for way, path in _open_files(here):
            if kind_of(path) and (status := _stat(way)) is not None and _is_written(here, way):
                yield _found(status, rank, way, path)


def _found(status: os.stat_result, rank: int, way: str, path: str, *, is_named: bool = False) -> FoundLog:
    # Names are bytes. What is not UTF-8 in them cannot be sent.
    name = os.fsencode(path).decode(errors="replace")
    return FoundLog(key=FileKey(status.st_dev, status.st_ino), rank=rank, way=way, path=name, is_named=is_named)


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            # The children of a process are listed by the thread that forked them.
            found += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_bytes().split())
    except OSError:
        # It has exited, or the kernel lacks this list: then only the rank itself is searched.
        return found
    return found


def _open_files(pid: int) -> Iterator[tuple[str, str]]:
    folder = f"/proc/{pid}/fd"
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names:
        way = f"{folder}/{name}"
        try:
            yield way, os.readlink(way)
        except OSError:
            continue


def _stat(path: str) -> os.stat_result | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status if stat.S_ISREG(status.st_mode) else None


def _is_written(pid: int, way: str) -> bool:
    """Return True if the descriptor is open for writing: a rank may also read old logs."""
    try:
        for line in Path(f"/proc/{pid}/fdinfo/{os.path.basename(way)}").read_bytes().splitlines():
            if line.startswith(b"flags:"):
                return int(line.split()[1], 8) & os.O_ACCMODE != os.O_RDONLY
    except (OSError, ValueError, IndexError):
        return False
    return False
