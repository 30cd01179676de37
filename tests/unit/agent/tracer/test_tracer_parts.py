"""What a node tells of its ranks: always in events that the bus takes; what is stuck in the kernel holds nothing up."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast import events
from holdfast.events import CollectiveTrace, StackDump
from holdfast.events.parts.traces import CollectiveRecord, Frame, ProcessGroup, ProcessStacks, RankTrace, ThreadStack
from holdfast.fresh_ids import uuid7
from holdfast_agent.tracer import memory_files
from holdfast_agent.tracer.memory_files import Program, program_of
from holdfast_agent.tracer.parts import stacks_in_parts, traces_in_parts

COMMON: dict[str, Any] = {
    "id": uuid7(),
    "at": datetime(2026, 1, 1, tzinfo=UTC),
    "source": "agent/n",
    "node": "n",
    "job": "j",
    "trace": uuid7(),
}


def threads(count: int, frames: int) -> tuple[ThreadStack, ...]:
    calls = tuple(Frame(function="f" * 240, file="p" * 240, line=line) for line in range(frames))
    return tuple(ThreadStack(frames=calls, is_main=not number) for number in range(count))


def test_processes_with_any_stacks_are_told() -> None:
    processes = [ProcessStacks(rank=rank, threads=threads(*size)) for rank, size in enumerate([(1, 9), (64, 80)] * 4)]
    processes.append(ProcessStacks(rank=8, threads=threads(1, 4_000)))
    parts = stacks_in_parts(processes)
    for part in parts:
        events.decode(events.encode(StackDump(**COMMON, processes=part)))
    told = [process for part in parts for process in part]
    assert [process.rank for process in told] == list(range(9))
    assert told[0].threads == processes[0].threads
    assert told[1].threads == processes[1].threads[:1] and told[1].threads[0].is_main
    assert told[8].is_tracers_fault and "exceeds the size" in told[8].unread


def test_traces_of_any_length_are_told() -> None:
    def trace(rank: int, records: int, members: int) -> RankTrace:
        groups = tuple(ProcessGroup(name=f"g{number}", ranks=tuple(range(members))) for number in range(4))
        return RankTrace(
            rank=rank,
            groups=groups,
            records=tuple(CollectiveRecord(group="g0", sequence=at, operation="all_reduce") for at in range(records)),
            entered={"g0": records},
        )

    traces = [trace(0, 10, 8), trace(1, 40_000, 8), trace(2, 40_000, 100_000)]
    parts = traces_in_parts(traces)
    for part in parts:
        events.decode(events.encode(CollectiveTrace(**COMMON, ranks=part, origin=COMMON["at"])))
    short, newest, nameless = (trace for part in parts for trace in part)
    assert short == traces[0]
    assert newest.records == traces[1].records[-1_000:] and newest.groups == traces[1].groups
    assert nameless.records and nameless.entered == {"g0": 40_000}
    assert [group.ranks for group in nameless.groups] == [()] * 4


async def test_a_process_whose_memory_is_locked_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    unlocked, readers = threading.Event(), []

    def locked(pid: int, name: str) -> str:
        readers.append(name)
        unlocked.wait()
        return "python\0train.py\0"

    own = await program_of(os.getpid())
    assert own.is_python and "python" in own.command
    monkeypatch.setattr(memory_files, "text_of", locked)
    began = time.monotonic()
    assert await program_of(os.getpid()) == await program_of(os.getpid()) == Program()
    assert time.monotonic() - began < 10 * memory_files.WAIT_S and readers == ["cmdline"]
    unlocked.set()
    async with asyncio.timeout(5.0):
        while (found := await program_of(os.getpid())) == Program():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.001)
    assert found == Program(command="python train.py")
