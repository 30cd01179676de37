"""Mount test: every network file system answers, and file systems mounted for writing are not read-only."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from holdfast.node.machine import Machine
from holdfast.node.proc.mount_table import mount_table
from holdfast.symptoms import Symptom
from holdfast_checks.result import StageResult, StageTask, failed, passed, skipped

SYMPTOM = Symptom.FILESYSTEM_MOUNT.value


def run(task: StageTask, begin: Callable[[], None]) -> Sequence[StageResult]:
    """Return one result for each failing mount; a hanging mount shows as this test's time limit."""
    begin()
    job = Path(task.context.job_directory) if task.context.job_directory else None
    mounts = mount_table(Machine()) or {}
    asked = [mount for mount in mounts.values() if mount.is_remote or (job is not None and mount.holds(job))]
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
