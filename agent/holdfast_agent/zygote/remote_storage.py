"""The file systems of other machines on which an operation of a rank failed, by its message and the node's mounts.

Such a failure is no fault of the rank's machine: every machine that uses the file system may have it.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping
from pathlib import Path

from holdfast.node.proc.mount_table import Mount, mount_of

_OF_STORAGE = tuple(
    os.strerror(number)
    for number in (errno.EIO, errno.ESTALE, errno.EREMOTEIO, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.ETIMEDOUT)
)
_NAMED = re.compile(rf"(?:{'|'.join(map(re.escape, _OF_STORAGE))}): ['\"](/[^'\"\n]*)['\"]")
"""As Python reports an error of a path."""
_BEFORE = re.compile(rf"(/[^\n]*?) cannot be \w+: (?:{'|'.join(map(re.escape, _OF_STORAGE))})")
"""As checkpoints of Holdfast report it."""
_UNNAMED = f"[Errno {errno.EIO}] {os.strerror(errno.EIO)}"
"""A read or a write of an open file fails without its name."""
_NAMES_MAX = 3


def storage_of(message: str, mounts: Mapping[str, Mount]) -> str:
    """Return the names of the file systems, "" if the operation was on none of another machine, or on no file.

    Without a path all of them may be meant.
    """
    if named := _NAMED.search(message) or _BEFORE.search(message):
        mount = mount_of(Path(named[1]), dict(mounts))
        return _name(mount) if mount is not None else ""
    if _UNNAMED not in message:
        return ""
    names = sorted({name for mount in mounts.values() if (name := _name(mount))})
    return ", ".join(names) if len(names) <= _NAMES_MAX else f"{', '.join(names[:_NAMES_MAX])} or another"


def _name(mount: Mount) -> str:
    # A container may have its root from its host.
    return "" if mount.point == "/" else mount.shared
