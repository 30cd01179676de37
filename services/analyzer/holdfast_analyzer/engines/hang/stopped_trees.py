"""Ranks that a stopped process holds up: one that the rank has started, or the only rank of a job. Pure.

A script may start the processes that train by itself, by torch.multiprocessing.spawn for instance. They are no ranks to
Holdfast, and their stacks are not compared. If a signal has stopped one of them, and no other process of the rank
works, nothing goes on until it does. So it is with a data loader worker or a compiler.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from holdfast.engines.hang.stacks.process_state import StateReader
from holdfast.events.parts.traces import ProcessStacks
from holdfast.settings.findings.hang import HangPolicy

STOPPED_BY_SIGNAL = frozenset({"T", "t"})
STOPPED_CONFIDENCE = 0.9


def stopped_trees(
    processes: Iterable[ProcessStacks], policy: HangPolicy, *, is_alone: bool
) -> dict[int, ProcessStacks]:
    """Return the ranks that a stopped process holds up, and that process. `is_alone`: the job has one rank.

    Of a rank's own process this is decided by comparison of its stacks with those of other ranks, unless there are
    none: the tracer may lack the rights to read them.
    """
    of_rank: defaultdict[int, list[ProcessStacks]] = defaultdict(list)
    for process in processes:
        if process.rank is not None:
            of_rank[process.rank].append(process)
    reader = StateReader()
    found: dict[int, ProcessStacks] = {}
    for rank, tree in of_rank.items():
        stopped = [
            one
            for one in tree
            if one.state in STOPPED_BY_SIGNAL and (is_alone or one.kind != "rank" or not one.threads)
        ]
        if stopped and not any(_explains(one, reader, policy, is_alone=is_alone) for one in tree):
            found[rank] = stopped[0]
    return found


def _explains(process: ProcessStacks, reader: StateReader, policy: HangPolicy, *, is_alone: bool) -> bool:
    """Return True if what a process does shows that its rank is not held up by another of its processes."""
    waits = reader.read(process).activity.doing == "others"
    if process.kind == "rank" and waits and not is_alone:
        # It waits for other ranks itself, whatever its children do.
        return process.state not in STOPPED_BY_SIGNAL
    # A process that waits for a device may spin, and a launcher looks at its children again and again.
    return not waits and (_computes(process, policy) or reads_or_writes(process, policy))


def is_working(process: ProcessStacks, policy: HangPolicy) -> bool:
    """Return True if a process computes, does not stay in one wait, reads or writes."""
    looks_again = process.kind == "rank" and (process.wakes_per_s or 0.0) >= policy.working_wakes_per_s
    return looks_again or _computes(process, policy) or reads_or_writes(process, policy)


def reads_or_writes(process: ProcessStacks, policy: HangPolicy) -> bool:
    """Return True if a process reads or writes."""
    return (process.io_bytes_per_s or 0.0) >= policy.working_bytes_per_s


def _computes(process: ProcessStacks, policy: HangPolicy) -> bool:
    return (process.cpu_share or 0.0) >= policy.working_cpu_share


def in_words(process: ProcessStacks) -> str:
    """Name a stopped process."""
    if process.kind == "rank":
        return f"rank {process.rank} (pid {process.pid}) is stopped"
    kind = {"data_loader": "data loader worker", "checkpoint": "checkpoint writer"}.get(process.kind, "process")
    place = "" if process.child is None else f"child {process.child}, "
    return f"the {kind} ({place}pid {process.pid}) that rank {process.rank} has started is stopped"
