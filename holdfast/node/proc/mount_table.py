"""The file systems that a process sees, and which of them another machine serves."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from holdfast.node.machine import Machine, text

_REMOTE = frozenset(
    {
        *("nfs", "nfs4", "cifs", "smb3", "lustre", "ceph", "beegfs", "gpfs", "gfs2", "glusterfs", "9p", "wekafs"),
        *("pvfs2", "afs"),
    }
)
_LOCAL_FUSE = frozenset(
    {
        *("fuse.lxcfs", "fuse.gvfsd-fuse", "fuse.portal", "fuse.snapfuse", "fuse.squashfuse", "fuse.squashfuse_ll"),
        *("fuse.fuse-overlayfs", "fuse.mergerfs", "fuse.gocryptfs", "fuse.encfs", "fuse.bindfs"),
    }
)


class Mount(msgspec.Struct, frozen=True, kw_only=True):
    """One line of mountinfo. `number` is the block device's, `8:1`."""

    point: str
    kind: str
    source: str
    number: str
    is_read_only: bool

    @property
    def is_remote(self) -> bool:
        """True if a server may keep it waiting."""
        return self.kind in _REMOTE or (self.kind.startswith("fuse.") and self.kind not in _LOCAL_FUSE)

    def holds(self, path: Path) -> bool:
        """Return True if the path lies below its mount point, which is not the root."""
        return self.point != "/" and path.is_relative_to(self.point)

    @property
    def shared(self) -> str:
        """The name by which all nodes know it; "" if it is this node's own."""
        return f"file system {self.source}" if self.is_remote else ""


def mount_table(machine: Machine) -> dict[str, Mount] | None:
    """Return the mounts of this process's namespace by mount point; the topmost where several are stacked."""
    listing = text(machine.proc / "self/mountinfo")
    if listing is None:
        return None
    found: dict[str, Mount] = {}
    for line in listing.splitlines():
        head, _, tail = line.partition(" - ")
        fields, rest = head.split(" "), tail.split(" ")
        if len(fields) < 6 or len(rest) < 3:
            continue
        point = _unescaped(fields[4])
        found[point] = Mount(
            point=point,
            kind=rest[0],
            source=_unescaped(rest[1]),
            number=fields[2],
            is_read_only="ro" in fields[5].split(",") or "ro" in rest[2].split(","),
        )
    return found


def mount_of(path: Path, table: dict[str, Mount]) -> Mount | None:
    """Return the mount that a path lies on, by its name, without asking a file system."""
    name = os.path.normpath(path.absolute())
    while name not in table and name != "/":
        name = os.path.dirname(name)
    return table.get(name)


def _unescaped(field: str) -> str:
    """Decode blanks, which are written as octal numbers."""
    return field.encode().decode("unicode_escape", errors="replace") if "\\" in field else field
