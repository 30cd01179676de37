"""Path test of a warm-up: a path of the job is there, answers, and lies on some file system. One worker for each path:
one that hangs holds up no other."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from holdfast.symptoms import Symptom
from holdfast_checks.node_tests.mounts import Mount, parse
from holdfast_checks.result import StageResult, StageTask, failed, passed

SYMPTOM = Symptom.FILESYSTEM_MOUNT.value


def run(task: StageTask, begin: Callable[[], None]) -> Sequence[StageResult]:
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
    mounts = [(line.split()[0], mount) for line, mount in _table() if mount.point == "/" or mount.holds(path.resolve())]
    source, mount = max(mounts, key=lambda found: len(found[1].point))
    return f"on {source} ({mount.kind})" if mount.is_remote else "on a disk of the node"


def _table() -> list[tuple[str, Mount]]:
    text = Path("/proc/self/mounts").read_text()
    lines = [line for line in text.splitlines() if len(line.split()) >= 3]
    return list(zip(lines, parse(text), strict=True))
