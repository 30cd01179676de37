"""The file systems of other machines on which an operation of a rank failed, by its message and the node's mounts.

Such a failure is no fault of the rank's machine: every machine that uses the file system may have it.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from holdfast.node.proc.mount_table import Mount, mount_of

_NUMBERS = (errno.EIO, errno.ESTALE, errno.EREMOTEIO, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.ETIMEDOUT)
_WORDS = "|".join(re.escape(os.strerror(number)) for number in _NUMBERS)
_NAMED = re.compile(rf"(?:{_WORDS}): ['\"](/[^'\"\n]*)['\"]")
"""As Python reports an error of a path."""
_BEFORE = re.compile(rf"(/[^\n]*?) cannot be \w+: (?:{_WORDS})")
"""As checkpoints of Holdfast report it."""
_OPEN_FILE = "|".join(str(number) for number in _NUMBERS if number != errno.ETIMEDOUT)
_UNNAMED = re.compile(rf"\[Errno (?:{_OPEN_FILE})\] (?:{_WORDS})|\(os error (?:{_OPEN_FILE})\)")
"""A read or a write of an open file fails without its name; the second form is of libraries in Rust."""
_MESSAGE_CHARS_MAX = 4096
"""More than `holdfast.trainer.rank` records: a rank can write the file itself, and a search takes the square of it."""
_NAMES_MAX = 3
_LINKS_MAX = 16


def storage_of(message: str, mounts: Mapping[str, Mount]) -> str:
    """Return the names of the file systems, "" if the operation was on none of another machine, or on no file.

    Without an absolute path all of them may be meant.
    """
    message = message[:_MESSAGE_CHARS_MAX]
    if named := _NAMED.search(message) or _BEFORE.search(message):
        mount = _mount_behind_links(named[1], dict(mounts))
        return _name(mount) if mount is not None else ""
    if not _UNNAMED.search(message):
        return ""
    names = sorted({name for mount in mounts.values() if (name := _name(mount))})
    return ", ".join(names) if len(names) <= _NAMES_MAX else f"{', '.join(names[:_NAMES_MAX])} or another"


def _mount_behind_links(path: str, mounts: dict[str, Mount]) -> Mount | None:
    """Return the mount that a path leads to. Only this machine's file systems are asked: others may not answer."""
    left, reached, links = path.split("/"), "/", 0
    while left:
        name = left.pop(0)
        reached = os.path.normpath(os.path.join(reached, name))
        mount = mount_of(Path(reached), mounts)
        if mount is not None and mount.point != "/" and (mount.is_remote or mount.kind.startswith(("fuse", "autofs"))):
            break  # A user's own file system may never answer.
        with suppress(OSError):
            target = os.readlink(reached)
            links += 1
            if links > _LINKS_MAX:
                break
            left = [*target.split("/"), *left]
            reached = "/" if target.startswith("/") else os.path.dirname(reached)
    return mount_of(Path(reached, *left), mounts)


def _name(mount: Mount) -> str:
    # A container may have its root from its host.
    return "" if mount.point == "/" else mount.shared
