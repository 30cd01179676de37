"""One round of the tracer: all processes of all ranks of the node in parallel, within bounded time.

It also measures which processes work meanwhile: a rank that makes no step but computes does not hang.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from holdfast.events.parts.traces import ProcessStacks, RankTrace, ThreadStack
from holdfast.node.proc.processor_waits import waits_of
from holdfast_agent.tracer.memory_files import Program, program_of
from holdfast_agent.tracer.process_tree import GONE, Process, Work, children_by_age, processes_of, state_of, work_of
from holdfast_agent.tracer.stacks import StacksSkipped, StacksUnread, by_stacks, stacks_of

AT_ONCE_MAX = 8
ROUND_S_MAX = 1.8
NATIVE_ROUND_S_MAX = 10.0
WATCHED_S = 0.8
"""Observation time of each process's work."""
_HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
"""Processes that Python starts beside those that a script starts by multiprocessing."""


class Round(msgspec.Struct, frozen=True, kw_only=True):
    processes: tuple[ProcessStacks, ...]
    traces: tuple[RankTrace, ...]
    took_s: float


async def trace(
    node: str,
    ranks: Mapping[int, int],
    collectives: Callable[[int], Awaitable[RankTrace]],
    *,
    native: bool = False,
) -> Round:
    """Trace the processes of these ranks (rank -> pid). `collectives` returns a rank's collective trace."""
    began = time.monotonic()
    until = began + (NATIVE_ROUND_S_MAX if native else ROUND_S_MAX)
    processes = await asyncio.to_thread(processes_of, ranks)
    before = {process.pid: work_of(process.pid) for process in processes}
    turns = asyncio.Semaphore(AT_ONCE_MAX)

    async def read(process: Process) -> ProcessStacks:
        threads: tuple[ThreadStack, ...] = ()
        unread, is_tracers_fault, program = "", False, Program()
        async with turns:
            try:
                program = await program_of(process.pid)
                if not program.is_python:
                    raise StacksUnread("not a Python process")
                if (left_s := until - time.monotonic()) <= 0:
                    raise StacksSkipped(f"its turn did not come within {time.monotonic() - began:.1f} s")
                threads = await stacks_of(process.pid, native=native, within_s=left_s)
            except StacksUnread as error:
                unread, is_tracers_fault = str(error), isinstance(error, StacksSkipped)
        # After its stacks: a process paused for them has resumed.
        state, waits_in = state_of(process.pid)
        if unread and state in GONE:
            unread, is_tracers_fault = f"it ended meanwhile: {unread}", True
        return ProcessStacks(
            kind=by_stacks(process.kind, threads),
            rank=process.rank,
            node=node,
            pid=process.pid,
            threads=threads,
            state=state,
            waits_in=waits_in,
            command=program.command,
            waited_s=waits_of(process.pid).total_s if process.kind == "rank" else None,
            unread=unread,
            is_tracers_fault=is_tracers_fault,
        )

    async def collected(rank: int) -> RankTrace:
        try:
            async with asyncio.timeout(max(0.0, until - time.monotonic())):
                return await collectives(rank)
        except TimeoutError:
            return RankTrace(rank=rank, node=node, unread="not read in time")

    async with asyncio.TaskGroup() as group:
        stacks = [group.create_task(read(process)) for process in processes]
        traces = [group.create_task(collected(rank)) for rank in sorted(ranks)]
        group.create_task(asyncio.sleep(WATCHED_S))
    watched_s = time.monotonic() - began
    seen = [_with_work(task.result(), before, watched_s) for task in stacks]
    ages = children_by_age(processes, {one.pid for one in seen if any(name in one.command for name in _HELPERS)})
    return Round(
        processes=tuple(msgspec.structs.replace(one, child=ages.get(one.pid)) for one in seen),
        traces=tuple(task.result() for task in traces),
        took_s=time.monotonic() - began,
    )


def _with_work(stacks: ProcessStacks, before: Mapping[int, Work | None], watched_s: float) -> ProcessStacks:
    first, last = before.get(stacks.pid), work_of(stacks.pid)
    if first is None or last is None:
        return stacks
    io_bytes = None if first.io_bytes is None or last.io_bytes is None else last.io_bytes - first.io_bytes
    wakes = None if first.wakes is None or last.wakes is None else last.wakes - first.wakes
    return msgspec.structs.replace(
        stacks,
        cpu_share=max(0.0, last.cpu_s - first.cpu_s) / watched_s,
        io_bytes_per_s=None if io_bytes is None else max(0, io_bytes) / watched_s,
        wakes_per_s=None if wakes is None else max(0, wakes) / watched_s,
    )
