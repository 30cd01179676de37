"""Path test of a warm-up: a path of the job is there, answers, and lies on some file system. One worker for each path:
one that hangs holds up no other."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from holdfast.node.machine import Machine
from holdfast.node.proc.mount_table import mount_of, mount_table
from holdfast.symptoms import Symptom
from holdfast_checks.result import StageResult, StageTask, failed, passed

SYMPTOM = Symptom.FILESYSTEM_MOUNT.value


def run(task: StageTask, begin: Callable[[], None]) -> Sequence[StageResult]:
    """Report whether the worker's path is there, answers and can be used as the job uses it."""
    begin()
    path, use = Path(task.context.options["path"]), task.context.options["use"]
    try:
        # A directory for checkpoints is made where it is missing; the rest must be there.
        known = path if use != "writes" else _present_part(path)
        known.stat()
        is_read_only = bool(os.statvfs(known).f_flag & os.ST_RDONLY)
        is_empty = use == "data" and known.is_dir() and next(os.scandir(known), None) is None
    except PermissionError:
        # The job's user may see what the agent's may not, on a server that trusts no root.
        return [passed(device=str(path), detail="may not be looked at")]
    except OSError as error:
        return [failed(SYMPTOM, f"{path}: {error.strerror or error}", device=str(path))]
    if use == "writes" and is_read_only:
        return [failed(Symptom.READ_ONLY_FILESYSTEM.value, f"{path} cannot be written: read-only", device=str(path))]
    return [passed(device=str(path), digest=("an empty directory " if is_empty else "") + _place(known))]


def _present_part(path: Path) -> Path:
    while path != path.parent:
        try:
            path.stat()
            return path
        except FileNotFoundError:
            path = path.parent
    return path


def _place(path: Path) -> str:
    """Return the file system that a path lies on, in words that are equal on all nodes that share it."""
    mount = mount_of(path.resolve(), mount_table(Machine()) or {})
    return f"on {mount.source} ({mount.kind})" if mount and mount.is_remote else "on a disk of the node"
