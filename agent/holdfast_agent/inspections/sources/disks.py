"""Disks that a node writes to: free space and inodes, file systems that became read-only, offline disks.

SMART is not read: it costs a command to every disk, and belongs to the tests while ranks are stopped.
"""

from __future__ import annotations

import os
from pathlib import Path

from holdfast.node.machine import Machine, entries, text
from holdfast.node.proc.mount_table import Mount, mount_of, mount_table
from holdfast.settings.inspections import InspectionPolicy
from holdfast.symptoms import Symptom
from holdfast_agent.inspections.check import Check, Reading, Trouble
from holdfast_agent.inspections.sources.mounts import Paths

_GIB = 1 << 30
_WELL = {"live", "running"}


class Disks:
    """Watches the file systems below `paths()`: the directories of the agent and its job, and for temporary files."""

    def __init__(self, machine: Machine, policy: InspectionPolicy, paths: Paths) -> None:
        self._machine = machine
        self._policy = policy
        self._paths = paths
        self._writable: set[Path] = set()

    def read(self) -> Reading:
        """Return each file system's state, once; network file systems have their own check."""
        table = mount_table(self._machine) or {}
        troubles: list[Trouble] = []
        unread: dict[str, str] = {}
        seen: dict[str, str] = {}
        below: dict[str, tuple[Mount | None, list[Path]]] = {}
        for path in self._paths():
            mount = mount_of(path, table)
            if mount is None or not mount.is_remote:
                below.setdefault(mount.point if mount else str(path), (mount, []))[1].append(path)
        for point, (mount, paths) in below.items():
            try:
                # A missing directory stands for the directory that it will be created in.
                room = os.statvfs(point)
            except FileNotFoundError:
                unread[point] = f"there is no {point}"
                continue
            except OSError as error:
                troubles.append(
                    Trouble(
                        device=point,
                        kind="error",
                        detail=f"{point} cannot be read: {error.strerror}",
                        confidence="evict",
                        symptom=Symptom.DISK_FAULT,
                    )
                )
                continue
            troubles += self._room(point, room)
            seen[point] = f"{room.f_bavail * room.f_frsize / _GIB:.1f} GiB free"
            if mount is not None:
                troubles += self._state(mount, paths)
        return Reading(troubles=tuple(troubles), unread=unread, seen=seen)

    def _room(self, point: str, room: os.statvfs_result) -> list[Trouble]:
        free_bytes, policy = room.f_bavail * room.f_frsize, self._policy
        percent = 100 * room.f_bavail / room.f_blocks if room.f_blocks else 100.0
        # Some file systems have no fixed number of inodes.
        inodes = 100 * room.f_favail / room.f_files if room.f_files else 100.0
        found: list[Trouble] = []
        if free_bytes < policy.disk_free_bytes_min or (room.f_files and room.f_favail == 0):
            what = f"{free_bytes / _GIB:.2f} GiB and {room.f_favail} inodes are free"
            detail = f"{what}, {policy.disk_free_bytes_min / _GIB:.2f} GiB are needed"
            found.append(Trouble(device=point, kind="full", detail=detail, confidence="tolerate"))
        elif min(percent, inodes) < policy.disk_free_percent_min:
            detail = f"{percent:.1f} % of the space and {inodes:.1f} % of the inodes are free"
            found.append(Trouble(device=point, kind="room", detail=detail))
        return found

    def _state(self, mount: Mount, paths: list[Path]) -> list[Trouble]:
        found: list[Trouble] = []
        if not mount.is_read_only:
            self._writable.update(paths)
        elif lost := sorted(self._writable.intersection(paths)):
            # A file system that was read-only from the start may be meant to be. Keyed by path, for another file system
            # may be mounted there now.
            detail = f"{lost[0]} on {mount.source} was writable and is now read-only"
            found.append(
                Trouble(
                    device=mount.point, kind="read-only", detail=detail, confidence="evict", symptom=Symptom.DISK_FAULT
                )
            )
        for disk in sorted(disks_below(self._machine, mount.number)):
            state = disk_state(self._machine, disk)
            if state and state not in _WELL:
                found.append(
                    Trouble(
                        device=disk,
                        kind="state",
                        detail=f"the disk below {mount.point} is {state}",
                        confidence="evict" if state in ("offline", "dead", "deleting") else "tolerate",
                        symptom=Symptom.DISK_FAULT,
                    )
                )
        return found


def disks_check(policy: InspectionPolicy, machine: Machine, paths: Paths) -> Check:
    """Return the check of all disks. Nodes of one machine share them."""
    return Check(
        name="disks",
        source="statvfs, /proc/self/mountinfo, /sys/class/block",
        read=Disks(machine, policy, paths).read,
        interval_s=policy.disks_s,
        symptom=Symptom.INSUFFICIENT_DISK_SPACE,
        scope="host",
    )


def disks_below(machine: Machine, number: str) -> frozenset[str]:
    """Return the block device, the disk that it is a part of, and the devices below it (LVM, RAID, crypt)."""
    found: set[str] = set()
    waiting = [machine.sys / "dev/block" / number]
    while waiting:
        link = waiting.pop()
        try:
            place = link.resolve(strict=True)
        except OSError:
            continue
        if place.name in found:
            continue
        found.add(place.name)
        if (place / "partition").exists():
            found.add(place.parent.name)
        waiting += entries(place / "slaves")
    return frozenset(found)


def disk_state(machine: Machine, disk: str) -> str:
    """Return the driver's state: `live` for NVMe, `running` for SCSI, "" for others."""
    return text(machine.sys / "class/block" / disk / "device/state") or ""
