"""Where backups lie, and what loss they outlive: the plan on its own."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.topology import Mesh, Topology
from holdfast_ckpt.plan.backup_plan import (
    BackupPlan,
    BackupStrategy,
    Protects,
    machine_mesh,
    nodes_of_group,
    plan_backups,
    share_group,
)

topologies = st.builds(
    lambda sizes, inner: Topology(
        Mesh(("pp", "dp", "cp", "tp")[-len(sizes) :], tuple(sizes)),
        inner,
    ),
    st.lists(st.integers(1, 6), min_size=1, max_size=4),
    st.just(1),
).flatmap(
    lambda topology: st.sampled_from(
        [count for count in range(1, topology.mesh.world_size + 1) if topology.mesh.world_size % count == 0]
    ).map(lambda count: Topology(topology.mesh, count))
)


def test_the_papers_figure_9() -> None:
    """TP=2, PP=4, DP=2 on eight machines of two: ranks 8 and 9 exchange their backups with ranks 2 and 3."""
    plan = plan_backups(Topology(Mesh.megatron(tp=2, pp=4, dp=2), 2))
    assert [plan.peer_of(rank) for rank in (8, 9, 2, 3)] == [2, 3, 8, 9]
    assert plan.protects is Protects.GROUP
    for rank in range(16):
        for dim in ("tp", "dp", "pp"):
            assert plan.peer_of(rank) not in plan.topology.mesh.group_of(rank, dim)


@pytest.mark.parametrize(
    ("mesh", "ranks_per_node", "sizes"),
    [
        ("pp=4,dp=2,tp=2", 2, (4, 2)),
        ("pp=4,dp=2,tp=2", 4, (4,)),  # a machine holds both replicas of a stage: all the rest is one pipeline
        ("pp=2,dp=2,tp=8", 4, (2, 2, 2)),  # a tensor-parallel group over two machines
        ("dp=16", 8, (2,)),
        ("pp=3,tp=2", 3, None),
        ("pp=2,tp=2", 4, ()),
    ],
)
def test_the_mesh_of_the_machines(mesh: str, ranks_per_node: int, sizes: tuple[int, ...] | None) -> None:
    assert machine_mesh(Topology(Mesh.parse(mesh), ranks_per_node)) == sizes


def test_a_single_group_falls_back_to_the_neighbour_and_says_so() -> None:
    plan = plan_backups(Topology(Mesh.parse("dp=8"), 2))
    assert plan.keeper == (1, 0, 3, 2)
    assert plan.protects is Protects.NODE
    assert "dp=8" in plan.reason


def test_one_node_has_no_backup() -> None:
    plan = plan_backups(Topology(Mesh.parse("pp=2,dp=2"), 4))
    assert (plan.peer_of(0), plan.protects) == (None, Protects.NOTHING)
    assert not plan.is_restorable(frozenset({0}))


def test_ring_and_pairs() -> None:
    topology = Topology(Mesh.parse("pp=5"), 1)
    assert plan_backups(topology, BackupStrategy.RING).keeper == (1, 2, 3, 4, 0)
    assert plan_backups(topology, BackupStrategy.PAIRS).keeper == (1, 0, 3, 4, 2)


def test_a_tensor_parallel_group_over_two_machines_is_left_as_a_whole() -> None:
    plan = plan_backups(Topology(Mesh.parse("pp=2,dp=2,tp=8"), 4))
    assert plan.protects is Protects.GROUP
    assert plan.keeper[0] == 7


@settings(max_examples=300)
@given(topologies, st.sampled_from(BackupStrategy))
def test_what_the_plan_promises_holds(topology: Topology, strategy: BackupStrategy) -> None:
    plan = plan_backups(topology, strategy)
    assert plan == plan_backups(topology, strategy)
    check_promise(plan)
    if topology.nnodes > 1:
        # Never two copies on one machine, and nobody keeps more than one node's.
        assert sorted(plan.keeper) == list(range(topology.nnodes))
        assert all(keeper != node for node, keeper in enumerate(plan.keeper))


def check_promise(plan: BackupPlan) -> None:
    topology = plan.topology
    if plan.protects is not Protects.NOTHING:
        assert all(plan.is_restorable(frozenset({node})) for node in range(topology.nnodes))
    if plan.protects is Protects.GROUP:
        for dim in topology.mesh.names:
            for group in topology.mesh.groups(dim):
                assert plan.is_restorable(nodes_of_group(topology, group)), (dim, group)


@settings(max_examples=200)
@given(topologies)
def test_two_machines_share_a_group_when_a_group_has_ranks_on_both(topology: Topology) -> None:
    groups = [nodes_of_group(topology, group) for dim in topology.mesh.names for group in topology.mesh.groups(dim)]
    for other in range(topology.nnodes):
        assert share_group(topology, 0, other) == any({0, other} <= nodes for nodes in groups)


@pytest.mark.parametrize("mesh", ["pp=4,dp=3", "pp=3,dp=2,tp=5", "dp=5,tp=4", "pp=2,dp=7"])
def test_with_an_even_dimension_two_nodes_keep_each_others(mesh: str) -> None:
    plan = plan_backups(Topology(Mesh.parse(mesh), 1))
    assert all(plan.keeper[plan.keeper[node]] == node for node in range(plan.topology.nnodes))
    check_promise(plan)


def test_what_each_node_keeps_is_counted() -> None:
    plan = plan_backups(Topology(Mesh.parse("pp=2,dp=2"), 1))
    assert plan.keeper == (3, 2, 1, 0)
    assert plan.kept_bytes([10, 20, 30, 40]) == [40, 30, 20, 10]


def same_rack(keepers: tuple[int, ...], racks: tuple[str, ...]) -> list[int]:
    return [node for node, keeper in enumerate(keepers) if racks[node] == racks[keeper]]


@pytest.mark.parametrize("mesh", ["dp=8", "pp=4,dp=8", "pp=3,dp=5", "dp=64", "pp=8,dp=16"])
@pytest.mark.parametrize("seed", range(4))
def test_copies_are_in_another_rack_whatever_the_order_of_nodes(mesh: str, seed: int) -> None:
    topology = Topology(Mesh.parse(mesh), 1)
    names = [f"r{node * 4 // topology.nnodes}" for node in range(topology.nnodes)]
    random.Random(seed).shuffle(names)
    racks = tuple(names)
    plain, plan = plan_backups(topology), plan_backups(topology, racks=racks)
    assert not same_rack(plan.keeper, racks)
    assert plan.reason.endswith(", in another rack")
    assert sorted(plan.keeper) == list(range(topology.nnodes))
    assert plan.protects == plain.protects
    if plan.protects is Protects.GROUP:
        assert not any(share_group(topology, node, keeper) for node, keeper in enumerate(plan.keeper))
    if all(plain.keeper[keeper] == node for node, keeper in enumerate(plain.keeper)):
        assert all(plan.keeper[keeper] == node for node, keeper in enumerate(plan.keeper))


def test_a_rack_with_most_nodes_keeps_some_of_its_own_copies_and_the_reason_counts_them() -> None:
    racks = ("a",) * 6 + ("b",) * 2
    plan = plan_backups(Topology(Mesh.parse("dp=8"), 1), racks=racks)
    assert len(same_rack(plan.keeper, racks)) == 4
    assert plan.reason.endswith("of 4 nodes they are in the same rack")


@pytest.mark.parametrize("racks", [(), ("",) * 8, ("a",) * 8, ("a", "") * 4])
def test_without_two_racks_the_plan_stays(racks: tuple[str, ...]) -> None:
    topology = Topology(Mesh.parse("dp=8"), 1)
    assert plan_backups(topology, racks=racks) == plan_backups(topology)


def test_a_strategy_that_was_chosen_is_not_changed_by_racks() -> None:
    topology = Topology(Mesh.parse("dp=4"), 1)
    assert plan_backups(topology, BackupStrategy.PAIRS, ("a", "a", "b", "b")).keeper == (1, 0, 3, 2)
