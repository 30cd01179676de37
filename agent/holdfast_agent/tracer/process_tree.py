"""The processes of a rank, from /proc: the rank itself, data loader workers, checkpoint writers.

A rank leads its own session, by which orphans of its dead children are found.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

import msgspec

from holdfast.events.parts.traces import ProcessKind
from holdfast.node.kernel import stat_fields
from holdfast_agent.tracer.memory_files import text_of

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_STATE, _PARENT, _SESSION, _USER_TICKS, _SYSTEM_TICKS, _STARTED = 0, 1, 3, 11, 12, 19
GONE = ("", "Z", "X")
"""States of a process that has ended."""


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """A process of a rank's tree. `kind` is a guess without stacks; see `by_stacks`."""

    pid: int
    rank: int
    kind: ProcessKind
    parent: int = 0
    started: int = 0
    """Clock ticks since boot."""


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """Work done by a process so far; None if unreadable."""

    cpu_s: float
    io_bytes: int | None
    wakes: int | None = None
    """Number of times its main thread has waited and gone on (voluntary context switches)."""


def processes_of(ranks: Mapping[int, int]) -> list[Process]:
    """Return the processes of these ranks (rank -> pid), ranks first."""
    parents: dict[int, tuple[int, int]] = {}
    started: dict[int, int] = {}
    for name in os.listdir("/proc"):
        fields = stat_fields(int(name)) if name.isdigit() else None
        if fields is not None and fields[_STATE] not in GONE:
            parents[int(name)] = (int(fields[_PARENT]), int(fields[_SESSION]))
            started[int(name)] = int(fields[_STARTED])
    rank_of = {pid: rank for rank, pid in ranks.items()}
    found = [Process(pid=pid, rank=rank, kind="rank") for rank, pid in ranks.items() if pid in parents]
    for pid in sorted(parents.keys() - rank_of.keys()):
        if (rank := _belongs_to(pid, parents, rank_of)) is not None:
            kind = _by_name(text_of(pid, "comm").strip())
            found.append(Process(pid=pid, rank=rank, kind=kind, parent=parents[pid][0], started=started[pid]))
    return found


def state_of(pid: int) -> tuple[str, str]:
    """Return the kernel's state letter of a process and its wait channel; "" where unreadable."""
    fields = stat_fields(pid)
    if fields is None:
        return "", ""
    waits_in = text_of(pid, "wchan")
    return fields[_STATE], "" if waits_in == "0" else waits_in


def work_of(pid: int) -> Work | None:
    """Return the work done by a process so far; None if it is gone."""
    fields = stat_fields(pid)
    if fields is None:
        return None
    io = dict(line.split(": ", 1) for line in text_of(pid, "io").splitlines() if ": " in line)
    status = dict(line.split(":", 1) for line in text_of(pid, "status").splitlines() if ":" in line)
    wakes = status.get("voluntary_ctxt_switches")
    io_bytes = int(io["rchar"]) + int(io["wchar"]) if "rchar" in io and "wchar" in io else None
    cpu_s = (int(fields[_USER_TICKS]) + int(fields[_SYSTEM_TICKS])) / _TICKS_PER_S
    return Work(cpu_s=cpu_s, io_bytes=io_bytes, wakes=None if wakes is None else int(wakes))


def children_by_age(processes: Iterable[Process], helpers: Collection[int]) -> dict[int, int]:
    """Return the place of each child among those of its parent, the oldest is 0. `helpers` are not counted."""
    siblings: defaultdict[int, list[Process]] = defaultdict(list)
    for process in processes:
        if process.kind != "rank" and process.pid not in helpers:
            siblings[process.parent].append(process)
    return {
        process.pid: place
        for each in siblings.values()
        for place, process in enumerate(sorted(each, key=lambda one: (one.started, one.pid)))
    }


def _belongs_to(pid: int, parents: Mapping[int, tuple[int, int]], rank_of: Mapping[int, int]) -> int | None:
    session = parents[pid][1]
    if session in rank_of:
        return rank_of[session]
    seen: set[int] = set()
    while pid in parents and pid not in seen:
        if pid in rank_of:
            return rank_of[pid]
        seen.add(pid)
        pid = parents[pid][0]
    return None


def _by_name(name: str) -> ProcessKind:
    return "data_loader" if name.startswith("pt_data_worker") else "other"
