"""The memory that is still available on the machine and in each cgroup of this process.

The kernel grants more than that, and later kills a process to get it back.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_RESERVED = 32
"""One part in this many is left free, because ranks and the system go on to need more."""


class _Files(NamedTuple):
    """The names of the same files in the two versions of cgroups."""

    most: str
    used: str
    reclaimable: str


_VERSION_1 = _Files("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_VERSION_2 = _Files("memory.max", "memory.current", "inactive_file")


def available_bytes(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the bytes that may be taken; 0 or less if none."""
    return min(
        available - total // _RESERVED for available, total in (memory_of_machine(proc), *_of_cgroups(proc, cgroups))
    )


def memory_of_machine(proc: Path = Path("/proc")) -> tuple[int, int]:
    """Return the bytes available without swapping, and all bytes."""
    meminfo = _numbers(proc / "meminfo")
    return meminfo["MemAvailable:"] << 10, meminfo["MemTotal:"] << 10


def _of_cgroups(proc: Path, cgroups: Path) -> Iterator[tuple[int, int]]:
    for line in (proc / "self" / "cgroup").read_text().splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0":
            yield from _of_cgroup(cgroups, path, _VERSION_2)
        elif "memory" in controllers.split(","):
            yield from _of_cgroup(cgroups / "memory", path, _VERSION_1)


def _of_cgroup(mount: Path, path: str, files: _Files) -> Iterator[tuple[int, int]]:
    """Yield available and total bytes of a cgroup and its visible parents: in a container not all are."""
    group = mount / path.lstrip("/")
    for each in (group, *group.parents):
        try:
            most = (each / files.most).read_text().strip()
            if most != "max":
                used = int((each / files.used).read_text()) - _numbers(each / "memory.stat")[files.reclaimable]
                yield int(most) - used, int(most)
        except OSError:
            pass
        if each == mount:
            return


def _numbers(file: Path) -> dict[str, int]:
    """Return the number after each word."""
    return {line.split()[0]: int(line.split()[1]) for line in file.read_text().splitlines()}
