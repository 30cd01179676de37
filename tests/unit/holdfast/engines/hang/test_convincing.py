"""Groups that are convincing enough to evict them at the first hang, and groups that are not."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from holdfast.engines.hang.convincing import convincing_group
from holdfast.engines.hang.hang_verdict import judge_hang
from holdfast.events.parts.traces import ProcessStacks, RankTrace
from holdfast.topology import Mesh
from holdfast_proving.emulated_hangs.scenes import KINDS, emulate
from tests.scenes import stacks as scenes
from tests.scenes.stacks import Calls

FIGURE_7 = Mesh(("dp", "pp", "tp"), (4, 4, 2))
OF_SCRIPTS = ("deadlock in user code", "data loader stuck", "collective skipped", "size mismatch", "storage hangs")


def group(at: Callable[[dict[str, int]], Calls], traces: Sequence[RankTrace] = (), mesh: Mesh = FIGURE_7) -> list[int]:
    """The machines, two ranks on each, of the convincing group in a job whose ranks stand so."""
    nodes = {rank: str(rank // 2) for rank in range(mesh.world_size)}
    stacks = [
        ProcessStacks(rank=one.rank, node=nodes[one.rank or 0], pid=one.pid, threads=one.threads)
        for one in scenes.job(mesh, at)
    ]
    return [int(node) for node in convincing_group(judge_hang(stacks, traces, mesh, 2, nodes), stacks, nodes)]


def in_pipeline(*stages: Calls, at: Calls = scenes.GRAD_SYNC) -> Callable[[dict[str, int]], Calls]:
    """Stacks in which the last pipeline stands like this, and all others at one place."""
    return lambda place: stages[place["pp"]] if place["dp"] == 3 else at


def test_a_chain_within_one_pipeline_is_convincing_and_its_end_comes_first() -> None:
    assert group(in_pipeline(scenes.IRECV, scenes.IRECV, scenes.ISEND, scenes.TP_GATHER)) == [15, 12, 13, 14]


def test_stages_that_look_like_all_others_come_last() -> None:
    assert group(in_pipeline(scenes.GRAD_SYNC, scenes.IRECV, scenes.TP_GATHER, scenes.GRAD_SYNC)) == [14, 13, 12, 15]


def test_ranks_that_took_another_branch_are_not() -> None:
    """All of the group wait in one operation: perhaps only they have called it."""
    assert group(in_pipeline(*[scenes.ALL_TO_ALL] * 4)) == []


@pytest.mark.parametrize("own", [scenes.DEADLOCK, scenes.DATA])
def test_a_group_with_a_rank_that_waits_for_no_other_is_not(own: Calls) -> None:
    assert group(in_pipeline(scenes.IRECV, scenes.IRECV, scenes.ISEND, own)) == []


def test_outliers_of_two_pipelines_are_not() -> None:
    def at(place: dict[str, int]) -> Calls:
        if place["dp"] < 2:
            return scenes.GRAD_SYNC
        return scenes.TP_GATHER if place["pp"] == place["dp"] else scenes.IRECV

    assert group(at) == []


@pytest.mark.parametrize("kind", OF_SCRIPTS)
def test_no_hang_of_a_script_leaves_a_convincing_group_where_collectives_are_recorded(kind: str) -> None:
    for seed in range(12):
        assert emulated(kind, seed)[0] == ()


def test_of_the_hangs_of_machines_some_do_and_the_cause_is_in_the_group() -> None:
    found = [emulated(kind, seed) for kind in KINDS if kind not in OF_SCRIPTS for seed in range(6)]
    named = [(nodes, machines) for nodes, machines in found if nodes]
    assert len(named) >= 2
    assert all(machines & set(nodes) for nodes, machines in named)


def emulated(kind: str, seed: int) -> tuple[tuple[str, ...], frozenset[str]]:
    """The convincing group of an emulated hang, and the machines at fault."""
    seen = emulate(kind, seed, 64, "launched")
    if seen is None:
        return (), frozenset()
    nodes = {rank: str(seen.layout.node(rank)) for rank in range(seen.layout.ranks)}
    verdict = judge_hang(seen.stacks, seen.traces, seen.layout.mesh, seen.layout.ranks_per_node, nodes, seen.links)
    return convincing_group(verdict, seen.stacks, nodes), seen.machines
