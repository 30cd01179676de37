"""Tells waits for a mount from other waits inside the kernel, by the function that a process sleeps in
(`/proc/PID/wchan`). Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from holdfast.events.parts.traces import ProcessStacks
from holdfast.symptoms import Symptom

_OF_MOUNTS = re.compile(
    r"_*(?:fuse|nfs\d?|rpc|ceph|cifs|smb\d?|p9|v9fs|afs|gfs2|ocfs2|ll|cl|osc|mdc|lov|ldlm|ptlrpc)_"
    r"|request_wait_answer|cxiWait"
)
"""Functions of FUSE, NFS, CephFS, SMB, 9p, AFS, GFS2, OCFS2, Lustre and GPFS. Functions that wait for a page are not
among them: they may belong to a disk."""

_ASLEEP = frozenset({"S", "D"})


def named_by_kernel(processes: Iterable[ProcessStacks]) -> Symptom | None:
    """Return the symptom that the waits of suspected ranks name; None if not each rank has such a process."""
    waits: dict[int | None, bool] = {}
    for process in processes:
        is_of_mount = process.state in _ASLEEP and _OF_MOUNTS.match(process.waits_in) is not None
        waits[process.rank] = waits.get(process.rank, False) or is_of_mount
    return Symptom.FILESYSTEM_MOUNT if waits and all(waits.values()) else None
