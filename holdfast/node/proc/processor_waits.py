"""Measures how long threads were ready to run and waited, because others used the processors
(`/proc/PID/task/*/schedstat`).

Threads in a control group with a limit of processor time also wait for each other and for the limit. Other processes
do not cause that: so no time is counted in which a control group of the process was throttled, or may have been
because its group cannot be read here.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from holdfast.node.machine import Machine, entries, text

_NS_PER_US = 1000


class ProcessorWaits(NamedTuple):
    """Waits of a process's threads since they began, as the kernel counts them."""

    of_threads_ns: dict[int, int]
    throttled_ns: int | None
    """Time for which the control groups of the process had used up their limits, of all processors together; None: it
    is in a group that cannot be read."""

    @property
    def total_s(self) -> float | None:
        """Seconds up to now, of which only differences mean something; None: not counted, or its groups were throttled
        at some time, or may have been.
        """
        if not self.of_threads_ns or self.throttled_ns != 0:
            return None
        return max(self.of_threads_ns.values()) / 1e9

    def since(self, before: ProcessorWaits) -> int:
        """Return for how many ns the thread that waited longest has waited for others since then."""
        if self.throttled_ns is None or self.throttled_ns != before.throttled_ns:
            return 0
        waited = (ns - before.of_threads_ns.get(tid, ns) for tid, ns in self.of_threads_ns.items())
        return max(waited, default=0)


def own_waits(*, of_all: bool) -> ProcessorWaits:
    """Return the waits of the calling thread, and then of all others of this process if wanted."""
    own, machine = threading.get_native_id(), Machine()
    others = (int(it.name) for it in entries(machine.proc / "self/task")) if of_all else ()
    return _waits("self", dict.fromkeys((own, *others)), machine)


def waits_of(pid: int, machine: Machine | None = None) -> ProcessorWaits:
    """Return the waits of a process's main thread; of none where the kernel does not count them."""
    return _waits(str(pid), (pid,), machine or Machine())


def _waits(process: str, threads: Iterable[int], machine: Machine) -> ProcessorWaits:
    folder = machine.proc / process
    counted = {tid: (text(folder / "task" / str(tid) / "schedstat") or "").split() for tid in threads}
    waits_ns = {tid: int(fields[1]) for tid, fields in counted.items() if len(fields) > 1}
    return ProcessorWaits(waits_ns, _throttled_ns(folder, machine.sys / "fs/cgroup"))


def _throttled_ns(folder: Path, root: Path) -> int | None:
    path, mounts = _group(folder, root)
    found = [stat for mount in mounts for group in _up_from(mount / path, mount) if (stat := text(group / "cpu.stat"))]
    if path and not found:
        return None
    return sum(map(_throttled_by, found))


def _group(folder: Path, root: Path) -> tuple[str, tuple[Path, ...]]:
    """Return the path of the control group that may limit a process's processors, "" for the root, and where its
    hierarchy may be mounted. The controller is in one hierarchy only."""
    unified = ""
    for line in (text(folder / "cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if "cpu" in controllers.split(","):
            return path.lstrip("/"), (root / "cpu",)
        if not controllers:
            unified = path.lstrip("/")
    return unified, (root, root / "unified")


def _up_from(group: Path, mount: Path) -> Iterator[Path]:
    """Yield the directory of a group and of all above it. In a container the mount itself is the container's group, and
    the path may be the one that only the machine knows."""
    yield group
    while group != mount:
        group = group.parent
        yield group


def _throttled_by(stat: str) -> int:
    words = dict(line.split(maxsplit=1) for line in stat.splitlines() if " " in line)
    if "throttled_time" in words:
        return int(words["throttled_time"])
    return int(words.get("throttled_usec", 0)) * _NS_PER_US
