"""The odds of losses, against brute force; and what other plans would change."""

from __future__ import annotations

import time
from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.topology import Mesh, Topology
from holdfast_ckpt.plan.backup_plan import BackupStrategy, Protects, plan_backups
from holdfast_ckpt.plan.losses.alternatives import compare_plans, diagonal_order
from holdfast_ckpt.plan.losses.odds import Guard, LossOdds, loss_odds

MESHES = ("dp=4", "dp=9", "pp=4,dp=2,tp=2", "pp=3,dp=3,tp=2", "pp=2,dp=2,tp=2", "dp=1", "pp=5,tp=2")


@st.composite
def guarded_jobs(draw: st.DrawFn) -> tuple[Topology, list[Guard]]:
    mesh = Mesh.parse(draw(st.sampled_from(MESHES)))
    inside = draw(st.sampled_from([count for count in (1, 2, 4) if mesh.world_size % count == 0]))
    topology = Topology(mesh, inside)
    nodes = st.frozensets(st.integers(0, topology.nnodes - 1), min_size=1, max_size=5)
    guard = nodes.flatmap(lambda held: st.builds(Guard, st.just(held), st.integers(0, len(held) - 1)))
    return topology, draw(st.lists(guard, max_size=12))


def _survives(guards: list[Guard], lost: frozenset[int]) -> bool:
    return not any(len(guard.nodes & lost) > guard.spare for guard in guards)


def _tried(topology: Topology, guards: list[Guard]) -> list[LossOdds]:
    """Return what trying every single loss gives."""
    losses = {
        "1 machine" if size == 1 else f"{size} machines": [
            frozenset(it) for it in combinations(range(topology.nnodes), size)
        ]
        for size in (1, 2, 3)
    }
    for dim in topology.mesh.names:
        groups = [frozenset(map(topology.node_rank_of, group)) for group in topology.mesh.groups(dim)]
        losses[f"group {dim}"] = groups if any(len(group) > 1 for group in groups) else []
    return [
        LossOdds(loss=loss, losses=len(sets), survived=sum(_survives(guards, lost) for lost in sets))
        for loss, sets in losses.items()
        if sets
    ]


@given(guarded_jobs())
@settings(max_examples=60, deadline=None)
def test_counting_equals_trying(job: tuple[Topology, list[Guard]]) -> None:
    topology, guards = job
    assert list(loss_odds(guards, topology)) == _tried(topology, guards)


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("strategy", BackupStrategy)
def test_the_plan_in_use_is_judged_by_its_real_keepers(mesh: str, strategy: BackupStrategy) -> None:
    topology = Topology(Mesh.parse(mesh), 1)
    plan = plan_backups(topology, strategy)
    ours, *_ = compare_plans(topology, strategy, [None if it == node else it for node, it in enumerate(plan.keeper)])
    for odds in ours.odds:
        size = {"1 machine": 1, "2 machines": 2, "3 machines": 3}.get(odds.loss)
        if size and topology.nnodes > 1:
            sets = combinations(range(topology.nnodes), size)
            assert odds.survived == sum(plan.is_restorable(frozenset(lost)) for lost in sets)


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("strategy", BackupStrategy)
def test_the_odds_agree_with_what_the_plan_protects(mesh: str, strategy: BackupStrategy) -> None:
    topology = Topology(Mesh.parse(mesh), 1)
    plan = plan_backups(topology, strategy)
    ours, *_ = compare_plans(topology, strategy, [None if it == node else it for node, it in enumerate(plan.keeper)])
    survives = {odds.loss: odds.survived == odds.losses for odds in ours.odds}
    assert survives["1 machine"] == (plan.protects is not Protects.NOTHING)
    if plan.protects is Protects.GROUP:
        assert all(it for loss, it in survives.items() if loss.startswith("group"))


def _shares(topology: Topology) -> dict[str, dict[str, float]]:
    keepers = plan_backups(topology).keeper
    found = compare_plans(topology, "cross-group", keepers)
    return {plan.plan: {it.loss: it.survived / it.losses for it in plan.odds} for plan in found}


def test_what_other_plans_would_buy() -> None:
    shares = _shares(Topology(Mesh.parse("pp=8,dp=8,tp=8"), 8))
    assert shares["cross-group"]["1 machine"] == shares["cross-group"]["group dp"] == 1
    assert shares["cross-group"]["2 machines"] == pytest.approx(1 - 32 / 2016)  # pairs that keep each other's
    assert shares["ring"]["2 machines"] == pytest.approx(1 - 64 / 2016)
    assert shares["ring"]["group dp"] == 0
    assert shares["cross-group, two copies"]["2 machines"] == 1
    assert shares["parity 4+1"]["2 machines"] == pytest.approx(1 - 160 / 2016)
    assert shares["parity 4+2"]["2 machines"] == 1
    assert shares["parity 4+2"]["3 machines"] > shares["cross-group"]["3 machines"]


def test_what_other_plans_would_cost() -> None:
    topology = Topology(Mesh.parse("pp=8,dp=8,tp=8"), 8)
    costs = {it.plan: it.memory_factor for it in compare_plans(topology, "ring", plan_backups(topology).keeper)}
    assert (costs["ring"], costs["cross-group, two copies"], costs["parity 4+1"], costs["parity 8+2"]) == (
        1,
        2,
        0.25,
        0.25,
    )


def test_a_node_without_a_copy_is_a_loss() -> None:
    topology = Topology(Mesh.parse("dp=4"), 1)
    (one, two, *_), *_ = (it.odds for it in compare_plans(topology, "pairs", [1, 0, None, None]))
    assert (one.survived, one.losses) == (2, 4)
    assert (two.survived, two.losses) == (0, 6)


def test_neighbours_on_the_diagonal_differ_in_all_dimensions() -> None:
    order = diagonal_order(Topology(Mesh.parse("pp=3,dp=4"), 1))
    assert sorted(order) == list(range(12))
    places = [divmod(node, 4) for node in order]
    assert all(a != c and b != d for (a, b), (c, d) in pairwise(places))


def test_ten_thousand_ranks_take_well_under_a_second() -> None:
    topology = Topology(Mesh.parse("pp=10,dp=125,tp=8"), 8)
    keepers = plan_backups(topology).keeper
    began = time.process_time()
    compare_plans(topology, "cross-group", keepers)
    assert time.process_time() - began < 1


@given(guarded_jobs(), st.data())
@settings(max_examples=40, deadline=None)
def test_racks_are_counted_as_they_are_lost(job: tuple[Topology, list[Guard]], data: st.DataObject) -> None:
    topology, guards = job
    label = st.sampled_from(["", "a", "b", "c"])
    racks = data.draw(st.lists(label, min_size=topology.nnodes, max_size=topology.nnodes))
    lost = [frozenset(node for node, it in enumerate(racks) if it == rack) for rack in sorted(set(racks) - {""})]
    told = [it for it in loss_odds(guards, topology, racks) if it.loss == "rack"]
    survived = sum(_survives(guards, nodes) for nodes in lost)
    assert told == ([LossOdds(loss="rack", losses=len(lost), survived=survived)] if lost else [])


def test_a_second_copy_is_not_needed_to_survive_a_rack() -> None:
    topology, racks = Topology(Mesh.parse("dp=8"), 1), ("a", "a", "a", "b", "b", "c", "c", "c")
    neighbours, apart = plan_backups(topology).keeper, plan_backups(topology, racks=racks).keeper
    found = [compare_plans(topology, "cross-group", keepers, racks)[0].odds for keepers in (neighbours, apart)]
    assert [next(it.survived for it in odds if it.loss == "rack") for odds in found] == [1, 3]
