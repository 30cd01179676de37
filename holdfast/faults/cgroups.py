"""Control groups, version 1 and 2: their hierarchy, and moving processes into groups."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import NamedTuple

GONE_WITHIN_S = 5.0


class CgroupsMissing(OSError):
    """This controller cannot be used here; the message gives the reason."""


class Hierarchy(NamedTuple):
    root: Path
    version: int


def hierarchy(controller: str) -> Hierarchy:
    """Return the hierarchy with this controller ("memory", "cpu"). Raises CgroupsMissing if no group can be made."""
    found = None
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, place, kind, options, *_ = line.split()
        root = Path(place)
        if kind == "cgroup" and controller in options.split(","):
            found = Hierarchy(root, 1)
        elif kind == "cgroup2" and controller in _words(root / "cgroup.controllers"):
            found = Hierarchy(root, 2)
    if found is None:
        raise CgroupsMissing(f"no cgroup hierarchy with the controller {controller} is mounted here")
    if not os.access(found.root, os.W_OK) or os.statvfs(found.root).f_flag & os.ST_RDONLY:
        raise CgroupsMissing(f"{found.root} cannot be written: run it as root, with cgroups writable in the container")
    if found.version == 2 and controller not in _words(found.root / "cgroup.subtree_control"):
        try:
            (found.root / "cgroup.subtree_control").write_text(f"+{controller}")
        except OSError as error:
            raise CgroupsMissing(
                f"{found.root} gives {controller} to no group below it: {error.strerror}; run it outside of containers"
            ) from error
    return found


def group_of(pid: int, controller: str, version: int) -> str:
    """Return the group of a process as a path below the root of the hierarchy; "" if the process is gone."""
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if (controller in controllers.split(",")) if version == 1 else not controllers:
            # The path of a group outside of a container's namespace leads upwards.
            return "" if ".." in path else path.lstrip("/")
    return ""


def move(pid: int, group: Path) -> None:
    """Move a process into a group; ignore one that is gone."""
    with contextlib.suppress(ProcessLookupError):
        (group / "cgroup.procs").write_text(str(pid))


def members(group: Path) -> list[int]:
    """Return the processes of a group; none if there is no such group."""
    return [int(pid) for pid in _words(group / "cgroup.procs")]


def remove(group: Path) -> None:
    """Remove an empty group; wait a moment for dead processes to leave it. Raises OSError if a process stays in it."""
    deadline = time.monotonic() + GONE_WITHIN_S
    while True:
        try:
            group.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return


def _words(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except FileNotFoundError:
        return []
