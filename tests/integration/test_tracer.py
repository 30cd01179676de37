"""The tracer on real processes: stopped ones, busy ones, forked workers, and programs that are no Python."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.events.parts.traces import ProcessStacks, RankTrace, ThreadStack
from holdfast.node.kernel import stat_fields
from holdfast_agent.tracer import rounds
from holdfast_agent.tracer.rounds import Round, trace
from holdfast_agent.tracer.stacks import StacksUnread

RANK = Path(__file__).with_name("tracer_rank.py")


@contextlib.contextmanager
def rank(what: str) -> Iterator[int]:
    """A process like a rank, in a session of its own, with what it has started."""
    with subprocess.Popen([sys.executable, str(RANK), what], stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        while what == "stands" and (stat_fields(process.pid) or "S")[0] != "S":
            time.sleep(0.001)
        try:
            yield process.pid
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


async def no_collectives(number: int) -> RankTrace:
    return RankTrace(rank=number)


def own(seen: Round, number: int) -> ProcessStacks:
    (process,) = (one for one in seen.processes if one.rank == number and one.kind == "rank")
    return process


def functions(process: ProcessStacks) -> list[str]:
    return [frame.function for thread in process.threads for frame in thread.frames]


async def test_a_round_reads_every_process_of_the_ranks_and_says_what_it_could_not_read() -> None:
    with rank("stands") as stands, rank("computes") as computes, rank("stands") as stopped:
        os.kill(stopped, signal.SIGSTOP)
        seen = await trace("node-0", {0: stands, 1: computes, 2: stopped, 3: 999_999_999}, no_collectives)

    still, busy, frozen = own(seen, 0), own(seen, 1), own(seen, 2)
    assert (still.pid, still.node, still.unread) == (stands, "node-0", "")
    assert "stands_still" in functions(still) and "computes" in functions(busy)
    assert "stands_still" in functions(frozen) and frozen.state == "T", "stopped processes are read as well"
    assert (still.state, frozen.unread) == ("S", "")
    assert (still.cpu_share or 0.0) < 0.05 < (busy.cpu_share or 0.0), "who works is told from who waits"

    others = [one for one in seen.processes if one.kind != "rank"]
    assert sorted(one.rank or 0 for one in others) == [0, 0, 1, 1, 2, 2]
    workers = [one for one in others if "sleeping_worker" in functions(one)]
    assert len(workers) == 3
    assert sorted(one.child or 0 for one in others) == [0, 0, 0, 1, 1, 1] and own(seen, 0).child is None
    programs = [one for one in others if one.unread]
    assert len(programs) == 3 and all("not a Python process" in one.unread for one in programs)
    assert [one.rank for one in seen.traces] == [0, 1, 2, 3]


async def test_what_a_dead_child_has_left_behind_is_found_by_its_session() -> None:
    with rank("stands") as pid:
        seen = await trace("node-0", {5: pid}, no_collectives)
        assert {one.rank for one in seen.processes} == {5}
        assert len(seen.processes) == 3
        (worker,) = (one.pid for one in seen.processes if "sleeping_worker" in functions(one))
        fields = stat_fields(worker)
        assert fields is not None and int(fields[3]) == pid


async def test_a_node_that_can_start_no_more_processes_blames_no_rank_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    with rank("stands") as pid:
        monkeypatch.setattr(asyncio, "create_subprocess_exec", refused)
        process = own(await trace("node-0", {0: pid}, no_collectives), 0)
    assert process.is_tracers_fault and "cannot be started" in process.unread and process.state == "S"


async def test_a_rank_that_ends_while_it_is_looked_at_speaks_against_no_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def late(pid: int, **_: object) -> tuple[ThreadStack, ...]:
        os.kill(pid, signal.SIGKILL)
        while (fields := stat_fields(pid)) is not None and fields[0] != "Z":  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.001)
        raise StacksUnread("Failed to open process")

    with rank("stands") as pid:
        monkeypatch.setattr(rounds, "stacks_of", late)
        process = own(await trace("node-0", {0: pid}, no_collectives), 0)
    assert process.is_tracers_fault and process.unread == "it ended meanwhile: Failed to open process"


@pytest.mark.parametrize("native", [False, True])
async def test_a_round_is_over_in_time(native: bool) -> None:
    with contextlib.ExitStack() as stack:
        ranks = {number: stack.enter_context(rank("stands")) for number in range(4)}
        seen = await trace("node-0", ranks, no_collectives, native=native)
    assert all(not own(seen, number).unread for number in ranks)
    assert all("stands_still" in functions(own(seen, number)) for number in ranks)
