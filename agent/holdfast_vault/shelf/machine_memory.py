"""How much memory is still to be had here: of the machine, and of each cgroup that this process is in.

The kernel gives more than that when it is asked for it, and then ends a process to get it back.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_RESERVED = 32
"""One part of so many is left alone: ranks and the system go on to need more."""


class _Files(NamedTuple):
    """What the two versions of cgroups call the same things."""

    most: str
    used: str
    reclaimable: str


_VERSION_1 = _Files("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_VERSION_2 = _Files("memory.max", "memory.current", "inactive_file")


def available_bytes(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """What may be taken; 0 or less: nothing."""
    return min(available - total // _RESERVED for available, total in (_of_machine(proc), *_of_cgroups(proc, cgroups)))


def _of_machine(proc: Path) -> tuple[int, int]:
    said = _numbers(proc / "meminfo")
    return said["MemAvailable:"] << 10, said["MemTotal:"] << 10


def _of_cgroups(proc: Path, cgroups: Path) -> Iterator[tuple[int, int]]:
    for line in (proc / "self" / "cgroup").read_text().splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0":
            yield from _of_cgroup(cgroups, path, _VERSION_2)
        elif "memory" in controllers.split(","):
            yield from _of_cgroup(cgroups / "memory", path, _VERSION_1)


def _of_cgroup(mount: Path, path: str, files: _Files) -> Iterator[tuple[int, int]]:
    """It and all above it, as far as they can be seen from here: in a container the upper ones cannot."""
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
    """The number after each word."""
    return {line.split()[0]: int(line.split()[1]) for line in file.read_text().splitlines()}
