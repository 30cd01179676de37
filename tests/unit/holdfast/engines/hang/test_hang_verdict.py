"""Stacks and collectives together."""

from __future__ import annotations

import pytest

from holdfast.engines.hang.hang_verdict import judge_hang
from holdfast.events.parts.traces import CollectiveRecord, Frame, ProcessGroup, ProcessStacks, RankTrace, ThreadStack
from holdfast.topology import Mesh
from holdfast_proving.emulated_hangs.scenes import KINDS, How, emulate, hung_job, observe

WORLD = ProcessGroup(name="0", description="default_pg", ranks=tuple(range(8)))
MESH = Mesh(("dp",), (8,))
WAITS = (("all_reduce", "/x/site-packages/torch/distributed/distributed_c10d.py"), ("step", "train.py"))
LOADS = (("wait", "/usr/lib/python3.11/threading.py"), ("fetch", "reader.py"), ("step", "train.py"))


def stack(rank: int, calls: tuple[tuple[str, str], ...], state: str = "S") -> ProcessStacks:
    frames = tuple(Frame(function=function, file=file) for function, file in calls)
    return ProcessStacks(rank=rank, threads=(ThreadStack(frames=frames, is_main=True),), state=state)


def trace(rank: int, *, joined: bool) -> RankTrace:
    state = "scheduled" if joined else "completed"
    record = CollectiveRecord(group="0", sequence=5 if joined else 4, operation="all_reduce", state=state)
    return RankTrace(rank=rank, groups=(WORLD,), records=(record,))


def test_both_name_the_same_rank() -> None:
    stacks = [stack(rank, LOADS if rank == 5 else WAITS) for rank in range(8)]
    traces = [trace(rank, joined=rank != 5) for rank in range(8)]
    verdict = judge_hang(stacks, traces, MESH, node_of_rank={rank: f"node-{rank // 2}" for rank in range(8)})
    assert (verdict.ranks, verdict.nodes, verdict.scope) == ((5,), ("node-2",), "machine")
    assert verdict.victims == (0, 1, 2, 3, 4, 6, 7)
    assert verdict.confidence > 0.95
    assert any("which rank 5 has not joined" in line for line in verdict.evidence)
    assert any("fetch" in line for line in verdict.evidence)


def test_stacks_that_are_alike_are_told_apart_by_progress() -> None:
    stacks = [stack(rank, WAITS) for rank in range(8)]
    verdict = judge_hang(stacks, [trace(rank, joined=rank != 3) for rank in range(8)], MESH, 2)
    assert (verdict.ranks, verdict.nodes) == ((3,), ("1",))


def test_stacks_drop_those_who_wait_in_what_is_not_recorded() -> None:
    # 4 to 6 wait for a message from 7; this backend records none.
    receives = (("recv", "/x/site-packages/torch/distributed/distributed_c10d.py"), ("step", "train.py"))
    stacks = [stack(rank, WAITS) for rank in range(4)] + [stack(rank, receives) for rank in (4, 5, 6)]
    stacks.append(stack(7, LOADS))
    verdict = judge_hang(stacks, [trace(rank, joined=rank < 4) for rank in range(8)], MESH, 1)
    assert verdict.ranks == (7,)


def test_a_stopped_process_among_those_that_left_no_dump() -> None:
    stacks = [stack(rank, WAITS, "T" if rank == 6 else "S") for rank in range(8)]
    verdict = judge_hang(stacks, [trace(rank, joined=True) for rank in range(5)], MESH, 1)
    assert verdict.ranks == (6,)


def test_ranks_that_are_stuck_on_their_device_are_not_blamed_for_lost_dumps() -> None:
    on_device = (("synchronize", "/x/site-packages/torch/cuda/__init__.py"), ("step", "train.py"))
    stacks = [stack(rank, on_device if rank == 6 else WAITS) for rank in range(8)]
    traces = [trace(rank, joined=True) for rank in range(8) if rank != 6]
    assert judge_hang(stacks, traces, MESH, 1).ranks == tuple(range(8))


def test_stacks_alone_and_collectives_alone() -> None:
    stacks = [stack(rank, LOADS if rank == 5 else WAITS) for rank in range(8)]
    traces = [trace(rank, joined=rank != 5) for rank in range(8)]
    assert judge_hang(stacks, [], MESH, 1).ranks == (5,)
    assert judge_hang([], traces, None, None).ranks == (5,)
    assert judge_hang([], traces).scope == "machine"


def test_a_group_is_called_a_group() -> None:
    verdict = judge_hang([], [trace(rank, joined=True) for rank in range(8)], MESH, 2)
    assert verdict.scope == "group"
    assert verdict.nodes == ("0", "1", "2", "3")
    assert "names no single machine" in verdict.summary


def test_nothing_seen() -> None:
    verdict = judge_hang([], [])
    assert (verdict.scope, verdict.ranks, verdict.summary) == (
        "nobody",
        (),
        "no evidence shows which rank blocks the job",
    )


@pytest.mark.parametrize("kind", KINDS)
def test_emulated_hangs_of_64_ranks(kind: str) -> None:
    """The machine at fault is suspected; `bench/hangs.py` does this for 256 to 2,048 ranks."""
    hung = [each for seed in range(1, 6) if (each := hung_job(kind, seed, 64))]
    assert len(hung) >= 3
    hows: tuple[How, ...] = ("launched", "strangers")
    for how in hows:
        alone = 0
        for hang in (observe(each, how) for each in hung):
            verdict = judge_hang(
                hang.stacks, hang.traces, hang.layout.mesh, hang.layout.ranks_per_node, links=hang.links
            )
            assert hang.machines <= set(verdict.nodes), f"seed {hang.seed}: {hang.words}: {verdict.summary}"
            alone += hang.machines == set(verdict.nodes)
        # Of those two all members of a collective show the same, unless the network and marks tell.
        if how == "launched" or kind not in ("link cut", "kernel stuck"):
            assert alone >= len(hung) - 1


def test_stages_that_only_partners_lie_on_are_no_suspects() -> None:
    hang = emulate("collective skipped", 5203, 512)
    assert hang is not None
    verdict = judge_hang(hang.stacks, hang.traces, hang.layout.mesh, hang.layout.ranks_per_node)
    assert set(verdict.nodes) == hang.machines
