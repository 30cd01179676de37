"""File systems that can hang or vanish: network file systems and those named in the settings.

A call to a dead file server never returns: each mount has its own thread, which can be abandoned, and one open call.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path

import msgspec

from holdfast.node.machine import Machine, text
from holdfast.settings.inspections import InspectionPolicy, listed
from holdfast.symptoms import Symptom
from holdfast_agent.inspections.check import Check, Reading, Trouble, unreadable

_REMOTE = frozenset({"nfs", "nfs4", "lustre", "gpfs", "ceph", "beegfs", "cifs", "smb3", "wekafs", "gfs2", "9p"})
_LOCAL_FUSE = frozenset({"fuse.lxcfs", "fuse.gvfsd-fuse", "fuse.portal", "fuse.snapfuse", "fuse.squashfuse"})

Paths = Callable[[], Collection[Path]]
"""The paths that a node writes to now."""


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

    @property
    def shared(self) -> str:
        """The name by which all nodes know it; "" if it is this node's own."""
        return f"file system {self.source}" if self.is_remote else ""


class _Question:
    """A call to one mount, in its own thread."""

    def __init__(self, point: str, ask: Callable[[str], None]) -> None:
        self._ask = ask
        self._point = point
        self.error: OSError | None = None
        self.asked_at = time.monotonic()
        self.answered = threading.Event()
        threading.Thread(target=self._run, name=f"mount {point}", daemon=True).start()

    def _run(self) -> None:
        try:
            self._ask(self._point)
        except OSError as error:
            self.error = error
        self.answered.set()


def ask(point: str) -> None:
    """Request attributes and free space, which a file system only answers if its server does."""
    os.stat(point)
    os.statvfs(point)


class Mounts:
    """Watches the mounts. `ask(point)` returns when the file system answers, or raises OSError."""

    def __init__(
        self, machine: Machine, policy: InspectionPolicy, paths: Paths, ask: Callable[[str], None] = ask
    ) -> None:
        self._machine = machine
        self._named = tuple(os.path.normpath(point) for point in listed(policy.mounts))
        self._paths = paths
        self._limit_s = policy.mount_hang_s
        self._ask = ask
        self._known: dict[str, Mount] = {}
        self._out: dict[str, _Question] = {}

    def read(self) -> Reading:
        present = mount_table(self._machine)
        if present is None:
            return unreadable(f"there is no {self._machine.proc}/self/mountinfo: mount procfs")
        self._known |= {mount.point: mount for mount in present.values() if mount.is_remote}
        points = tuple(dict.fromkeys((*self._named, *self._known)))
        gone = [self._gone(point) for point in points if point not in present]
        watched = [point for point in points if point in present]
        if not points:
            return Reading(absent="no network file system is mounted; name mounts in [inspections] mounts")
        return Reading(
            troubles=(*gone, *self._hanging(watched)),
            seen={point: f"{present[point].kind} of {present[point].source} answers" for point in watched},
        )

    def _gone(self, point: str) -> Trouble:
        detail = f"nothing is mounted at {point}"
        shared = self._shared(point)
        if point in self._named:
            return Trouble(device=point, kind="gone", detail=detail, confidence="evict", shared=shared)
        # Unmounting may be intended, except where the node writes.
        is_needed = any(Path(point) in (path, *path.parents) for path in self._paths())
        return Trouble(
            device=point,
            kind="gone",
            detail=f"{detail}, before it was {self._known[point].source}",
            confidence="tolerate" if is_needed else "hint",
            shared=shared,
        )

    def _shared(self, point: str) -> str:
        return self._known[point].shared if point in self._known else ""

    def _hanging(self, points: list[str]) -> list[Trouble]:
        for point in points:
            if point not in self._out:
                self._out[point] = _Question(point, self._ask)
        deadline = time.monotonic() + self._limit_s
        troubles: list[Trouble] = []
        for point in points:
            question = self._out[point]
            if not question.answered.wait(max(0.0, deadline - time.monotonic())):
                waited_s = time.monotonic() - question.asked_at
                detail = f"{point} has not answered for {waited_s:.0f} s"
                troubles.append(Trouble(device=point, kind="hang", detail=detail, shared=self._shared(point)))
                continue
            del self._out[point]
            if question.error is not None:
                detail = f"{point} cannot be used: {question.error.strerror}"
                troubles.append(Trouble(device=point, kind="error", detail=detail, shared=self._shared(point)))
        return troubles


def mounts_check(policy: InspectionPolicy, machine: Machine, paths: Paths) -> Check:
    return Check(
        name="mounts",
        source="/proc/self/mountinfo, statvfs",
        read=Mounts(machine, policy, paths).read,
        interval_s=policy.mounts_s,
        limit_s=policy.mount_hang_s + 10,
        confidence="tolerate",
        symptom=Symptom.FILESYSTEM_MOUNT,
    )


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
