"""Dual-phase replay: every machine is found wherever one is at fault, and nobody is named for a guess (Alg. 1)."""

from __future__ import annotations

from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.engines.checks.replay_groups import (
    PHASES,
    NotReplayable,
    ReplayPlan,
    ReplaySuspects,
    intersect_phases,
    original_rank,
    plan_replay,
)
from holdfast.topology import Mesh, Topology

MANY = 1_000


def plan_of(machines: int, size: int) -> ReplayPlan:
    return ReplayPlan(machines=machines, size=size, mesh=f"dp={size}", replicas=size)


def faulty(plan: ReplayPlan, *culprits: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    rows, columns = ({plan.group_of(culprit, phase) for culprit in culprits} for phase in PHASES)
    return tuple(sorted(rows)), tuple(sorted(columns))


shapes = st.tuples(st.integers(1, 12), st.integers(2, 12)).map(lambda shape: plan_of(shape[0] * shape[1], shape[0]))


def test_the_example_of_the_paper() -> None:
    plan = plan_replay(Topology.of(24, 1, Mesh.parse("dp=6,pp=4")))
    assert (plan.size, plan.groups, plan.mesh) == (4, 6, "dp=1,pp=4")
    assert list(plan.members(3, "horizontal")) == [12, 13, 14, 15]
    assert list(plan.members(1, "vertical")) == [1, 7, 13, 19]
    assert intersect_phases(plan, (3,), (1,), 1).suspects == (13,)


@given(shapes)
def test_groups_cut_the_machines_and_nobody_is_left_out(plan: ReplayPlan) -> None:
    for phase in PHASES:
        groups = [list(plan.members(group, phase)) for group in range(plan.groups)]
        assert sorted(machine for group in groups for machine in group) == list(range(plan.machines))
        for number, group in enumerate(groups):
            assert len(group) == plan.size
            assert {plan.group_of(machine, phase) for machine in group} == {number}


@given(shapes, st.data())
def test_one_culprit_is_found_alone_or_among_as_few_as_the_paper_says(plan: ReplayPlan, data: st.DataObject) -> None:
    culprit = data.draw(st.integers(0, plan.machines - 1))
    located = intersect_phases(plan, *faulty(plan, culprit), MANY)
    named = located.suspects or located.candidates
    assert culprit in named
    if plan.size <= plan.groups:
        assert located.suspects == (culprit,)
    else:
        assert len(named) <= ceil(plan.size / plan.groups)


@given(shapes, st.data())
def test_of_several_culprits_none_is_missed_and_no_suspect_is_a_guess(plan: ReplayPlan, data: st.DataObject) -> None:
    culprits = data.draw(st.sets(st.integers(0, plan.machines - 1), min_size=2, max_size=4))
    rows, columns = faulty(plan, *culprits)
    located = intersect_phases(plan, rows, columns, MANY)
    named = set(located.suspects or located.candidates)
    if len(rows) == len(columns) == 1:
        assert culprits <= named
    elif located.suspects:
        # Whatever else is at fault in the same groups, these are.
        assert named <= culprits
    else:
        assert culprits <= named


@given(shapes, st.data())
def test_what_comes_and_goes_evicts_nobody_unless_a_group_is_one_machine(plan: ReplayPlan, data: st.DataObject) -> None:
    group = data.draw(st.integers(0, plan.groups - 1))
    located = intersect_phases(plan, (group,), (), MANY)
    assert set(located.suspects or located.candidates) == set(plan.members(group, "horizontal"))
    assert not located.suspects or plan.size == 1


def test_more_machines_than_may_be_evicted_are_only_named() -> None:
    plan = plan_of(12, 6)
    located = intersect_phases(plan, (1,), (0,), 2)
    assert (located.suspects, located.candidates) == ((), (6, 8, 10))
    assert "one of them is at fault; 3 are more than may be evicted at once" in located.reason
    assert intersect_phases(plan, (1,), (0,), 3) == ReplaySuspects(
        suspects=(6, 8, 10),
        one_of=True,
        reason="3 machines are in the faulty group of both phases (horizontal 1, vertical 0), since a group has 6 "
        "machines and there are only 2 groups: one of them is at fault",
    )


def test_several_in_several_groups_of_both_phases_cannot_be_told_apart() -> None:
    plan = plan_of(16, 4)
    located = intersect_phases(plan, *faulty(plan, 0, 5), MANY)
    assert (located.suspects, located.candidates) == ((), (0, 1, 4, 5))
    assert "nothing shows which" in located.reason


@pytest.mark.parametrize(
    ("mesh", "machines", "ranks_per_node", "size", "groups", "reduced"),
    [
        ("dp=4", 4, 1, 1, 4, "dp=1"),  # two to a group would leave two groups, and no majority
        ("dp=16", 16, 1, 2, 8, "dp=2"),  # gradients are exchanged, as in training
        ("dp=2", 2, 1, 1, 2, "dp=1"),
        ("pp=2,dp=2", 4, 1, 2, 2, "pp=2,dp=1"),
        ("pp=4,dp=8,tp=8", 32, 8, 4, 8, "pp=4,dp=1,tp=8"),
        ("pp=2,dp=16,tp=8", 32, 8, 4, 8, "pp=2,dp=2,tp=8"),
        ("dp=32,tp=2", 8, 8, 1, 8, "dp=4,tp=2"),  # four replicas on a machine, which is not cut
        ("dp=12,tp=4", 8, 6, 2, 4, "dp=3,tp=4"),  # replicas and machines end together after every twelve ranks
        ("dp_replicate=4,dp_shard=2", 8, 1, 2, 4, "dp_replicate=1,dp_shard=2"),
    ],
)
def test_groups_hold_whole_replicas(
    mesh: str, machines: int, ranks_per_node: int, size: int, groups: int, reduced: str
) -> None:
    plan = plan_replay(Topology.of(machines, ranks_per_node, Mesh.parse(mesh)))
    assert (plan.size, plan.groups, plan.mesh) == (size, groups, reduced)
    assert Mesh.parse(plan.mesh).world_size == plan.size * ranks_per_node


@pytest.mark.parametrize(
    ("mesh", "machines", "ranks_per_node", "why"),
    [
        ("pp=4,tp=2", 4, 2, "no data parallelism"),
        ("dp=1,pp=4", 4, 1, "cannot be cut"),
        ("dp=2,tp=2", 1, 4, "cannot be cut"),
        ("dp=3,tp=4", 2, 6, "cannot be cut"),
    ],
)
def test_where_nothing_can_be_compared_that_is_said(mesh: str, machines: int, ranks_per_node: int, why: str) -> None:
    with pytest.raises(NotReplayable, match=why):
        plan_replay(Topology.of(machines, ranks_per_node, Mesh.parse(mesh)))


def test_a_rank_takes_the_place_of_one_of_the_first_replicas() -> None:
    reduced, original = Mesh.parse("pp=2,dp=2,tp=2"), Mesh.parse("pp=2,dp=4,tp=2")
    assert [original_rank(rank, reduced, original) for rank in range(8)] == [0, 1, 2, 3, 8, 9, 10, 11]
