"""Mount test: every network file system answers, and file systems mounted for writing are not read-only."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from holdfast.symptoms import Symptom
from holdfast_checks.result import StageResult, StageTask, failed, passed, skipped

SYMPTOM = Symptom.FILESYSTEM_MOUNT.value
REMOTE = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "lustre", "ceph", "beegfs", "gpfs", "glusterfs", "9p", "wekafs", "pvfs2", "afs"}
)
REMOTE_FUSE = ("fuse.",)
_ESCAPED = re.compile(r"\\([0-7]{3})")


def run(task: StageTask, begin: Callable[[], None]) -> Sequence[StageResult]:
    """Return one result for each failing mount; a hanging mount shows as this test's time limit."""
    begin()
    job = Path(task.context.job_directory) if task.context.job_directory else None
    mounts = parse(Path("/proc/self/mounts").read_text())
    asked = [mount for mount in mounts if mount.is_remote or (job is not None and mount.holds(job))]
    if not asked:
        return [skipped("no network file system is mounted here")]
    found = []
    for mount in asked:
        print(f"asking {mount.point} ({mount.kind})", flush=True)
        try:
            os.statvfs(mount.point)
        except PermissionError:
            continue
        except OSError as error:
            found.append(failed(SYMPTOM, f"{mount.point} ({mount.kind}): {error.strerror}", device=mount.point))
    return found or [passed(value=float(len(asked)), unit="mounts")]


class Mount:
    """A line of /proc/self/mounts."""

    def __init__(self, point: str, kind: str) -> None:
        self.point = point
        self.kind = kind

    @property
    def is_remote(self) -> bool:
        """True if another machine serves it."""
        return self.kind in REMOTE or self.kind.startswith(REMOTE_FUSE)

    def holds(self, path: Path) -> bool:
        """Return True if the path lies below its mount point, which is not the root."""
        return self.point != "/" and path.is_relative_to(self.point)


def parse(text: str) -> list[Mount]:
    """Return the mounts; blanks in names are octal escapes."""
    lines = (line.split() for line in text.splitlines())
    return [Mount(_unescaped(fields[1]), fields[2]) for fields in lines if len(fields) >= 3]


def _unescaped(name: str) -> str:
    return _ESCAPED.sub(lambda match: chr(int(match[1], 8)), name)
