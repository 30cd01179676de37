"""What a stopped process that a rank has started says of the rank: it is held up, unless something else goes on."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.events import CollectiveTrace, HangFound, Progress, StackDump
from holdfast.events.parts.ranks import RankProgress
from holdfast.events.parts.traces import Frame, ProcessStacks, RankTrace, ThreadStack
from holdfast.settings.findings.hang import HangPolicy
from holdfast_analyzer.engines.hang.stopped_trees import stopped_trees
from tests.scenes.hang import START, WAITS, Calls, Scene

JOINS: Calls = (("wait", "/usr/lib/python3/multiprocessing/connection.py"), ("join", "/torch/multiprocessing/spawn.py"))
TRAINS: Calls = (("forward", "/job/train.py"),)


def process(pid: int, calls: Calls = JOINS, **fields: Any) -> ProcessStacks:
    frames = tuple(Frame(function=function, file=file, line=7) for function, file in calls)
    usual: dict[str, Any] = {"rank": 0, "node": "a", "state": "S", "kind": "other", "cpu_share": 0.0}
    return ProcessStacks(pid=pid, threads=(ThreadStack(frames=frames, is_main=True),), **(usual | fields))


RANK = process(10, kind="rank")
STOPPED = process(12, TRAINS, state="T", child=1)


@pytest.mark.parametrize(
    ("other", "is_held_up"),
    [
        (process(11, WAITS), True),
        (process(11, WAITS, cpu_share=1.0), True),  # it spins
        (process(11, TRAINS, cpu_share=1.0), False),
        (process(11, TRAINS, io_bytes_per_s=1e6), False),
        (process(11, TRAINS), True),
    ],
)
def test_a_rank_is_held_up_by_a_stopped_child_unless_another_process_works(
    other: ProcessStacks, is_held_up: bool
) -> None:
    found = stopped_trees((RANK, other, STOPPED), HangPolicy(), is_alone=True)
    assert found == ({0: STOPPED} if is_held_up else {})


@pytest.mark.parametrize("is_alone", [True, False])
def test_a_launcher_that_looks_at_its_children_again_and_again_is_held_up_by_a_stopped_one(is_alone: bool) -> None:
    polls: Calls = (("_invoke_run", "/torch/distributed/elastic/agent/server/api.py"),)
    launcher = process(10, polls, kind="rank", wakes_per_s=10.0)
    found = stopped_trees((launcher, process(11, WAITS), STOPPED), HangPolicy(), is_alone=is_alone)
    assert found == {0: STOPPED}


def test_a_rank_that_waits_for_other_ranks_is_not_held_up_by_its_child() -> None:
    tree = (process(10, WAITS, kind="rank"), STOPPED)
    assert not stopped_trees(tree, HangPolicy(), is_alone=False)
    assert stopped_trees(tree, HangPolicy(), is_alone=True)


@pytest.mark.parametrize("is_tracers_fault", [True, False])
def test_a_stopped_rank_is_named_by_its_state_where_no_stacks_can_be_read(is_tracers_fault: bool) -> None:
    unread: Any = {"threads": (), "unread": "no rights", "is_tracers_fault": is_tracers_fault, "kind": "rank"}
    ranks = [msgspec.structs.replace(process(10 + rank), rank=rank, **unread) for rank in range(2)]
    ranks[1] = msgspec.structs.replace(ranks[1], state="T")
    assert stopped_trees(ranks, HangPolicy(), is_alone=False) == {1: ranks[1]}


@pytest.mark.parametrize(
    ("tree", "named"),
    [
        (
            (RANK, process(11, WAITS), STOPPED),
            "the process (child 1, pid 12) that rank 0 has started is stopped (a) and no other process",
        ),
        (
            (RANK, process(12, kind="data_loader", state="T")),
            "the data loader worker (pid 12) that rank 0 has started is stopped",
        ),
        ((process(10, TRAINS, kind="rank", state="T"),), "rank 0 (pid 10) is stopped"),
    ],
)
def test_the_only_rank_of_a_job_is_named_with_its_stopped_process_and_no_machine(
    tree: tuple[ProcessStacks, ...], named: str
) -> None:
    scene = Scene()
    for _ in range(3):
        progress = RankProgress(rank=0, step=-1, phase="init", since_change_s=40.0, since_step_s=40.0, is_stopped=True)
        scene.receive(Progress(**scene.common("a"), ranks=(progress,), world_size=1, nproc_per_node=1))
        scene.adopt(scene.analyzer.on_time(scene.now, START))
    trace = scene.wanted[-1].id
    scene.receive(StackDump(**scene.common("a"), trace=trace, processes=tree))
    scene.receive(CollectiveTrace(**scene.common("a"), trace=trace, origin=START, ranks=(RankTrace(rank=0),)))
    (found,) = scene.of(HangFound)
    assert (found.ranks, found.nodes, found.is_by_signal) == ((0,), ("a",), True)
    assert found.summary.startswith(named)
