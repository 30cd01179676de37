"""Whom a slow job's times make a suspect, and whom they do not."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from holdfast.engines.slow.locating import find_slow_suspects
from holdfast.engines.slow.slow_findings import GroupTime, RankWork, SlowSuspects, Suspicion
from holdfast.topology import Mesh, Topology

MESH = Mesh.parse("pp=2,dp=4,tp=2")
TOPOLOGY = Topology(MESH, 2)
STEPS = 12
OPERATIONS = {"tp": ("all_reduce", 1 << 20, 96), "dp": ("reduce_scatter", 1 << 28, 1), "pp": ("send", 1 << 20, 16)}


def groups(transfer_s: Callable[[str, range], float] = lambda dim, ranks: 0.01) -> list[GroupTime]:
    """Every group of the mesh, each with the collective of its kind."""
    return [
        GroupTime(
            group=f"{dim}:{ranks[0]}",
            kind=dim,
            ranks=tuple(ranks),
            operation=OPERATIONS[dim][0],
            bytes=OPERATIONS[dim][1],
            transfer_s=transfer_s(dim, ranks),
            occurrences=OPERATIONS[dim][2],
        )
        for dim in MESH.names
        for ranks in MESH.groups(dim)
    ]


def works(
    work_s: Callable[[int, int], float] = lambda rank, step: 1.0,
    healthy_s: Callable[[int], float] = lambda rank: 0.0,
    topology: Topology = TOPOLOGY,
) -> list[RankWork]:
    """The work of each rank in each step, with noise."""
    chance = random.Random(1)
    return [
        RankWork(
            rank=rank,
            work_s=tuple(work_s(rank, step) * chance.uniform(0.98, 1.02) for step in range(STEPS)),
            healthy_s=healthy_s(rank),
        )
        for rank in range(topology.mesh.world_size)
    ]


def causes(located: SlowSuspects) -> list[str]:
    return [found.cause for found in located.suspicions]


@pytest.mark.parametrize("slow", range(MESH.world_size))
def test_a_rank_that_works_longer_than_its_like_is_the_suspect(slow: int) -> None:
    located = find_slow_suspects(groups(), works(lambda rank, step: 1.3 if rank == slow else 1.0), TOPOLOGY)
    assert located.ranks("computation") == (slow,)
    assert causes(located) == ["computation"]
    assert f"rank {slow} works" in located.reason


def test_a_stage_that_has_more_to_do_hides_nobody() -> None:
    """The last stage works longer by its layers; within it, one rank by its own."""
    located = find_slow_suspects(
        groups(), works(lambda rank, step: (1.3 if rank >= 8 else 1.0) * (1.4 if rank == 9 else 1.0)), TOPOLOGY
    )
    assert located.ranks("computation") == (9,)


def test_a_group_whose_transfers_take_longer_is_the_suspect() -> None:
    located = find_slow_suspects(
        groups(lambda dim, ranks: 0.03 if dim == "dp" and 9 in ranks else 0.01), works(), TOPOLOGY
    )
    assert causes(located) == ["communication"]
    assert located.suspicions[0].ranks == tuple(MESH.group_of(9, "dp"))
    assert located.suspicions[0].ratio == pytest.approx(3.0)


def test_a_link_that_several_kinds_of_groups_use_makes_them_all_suspects() -> None:
    located = find_slow_suspects(
        groups(lambda dim, ranks: 0.02 if 4 in ranks and dim != "tp" else 0.01), works(), TOPOLOGY
    )
    assert {found.kind for found in located.suspicions} == {"dp", "pp"}


def test_a_slow_rank_and_a_slow_link_at_once_are_both_found() -> None:
    located = find_slow_suspects(
        groups(lambda dim, ranks: 0.03 if dim == "dp" and 9 in ranks else 0.01),
        works(lambda rank, step: 1.5 if rank == 2 else 1.0),
        TOPOLOGY,
    )
    assert located.ranks("computation") == (2,)
    assert located.ranks("communication") == tuple(MESH.group_of(9, "dp"))


def test_a_stage_that_always_had_more_to_do_is_no_machines_fault() -> None:
    uneven = works(lambda rank, step: 1.4 if rank >= 8 else 1.0, healthy_s=lambda rank: 1.4 if rank >= 8 else 1.0)
    located = find_slow_suspects(groups(), uneven, TOPOLOGY)
    assert located.suspicions == ()
    assert [found.cause for found in located.harmless] == ["stage_imbalance"]
    assert located.harmless[0].ranks == tuple(range(8, 16))
    assert "no machine is at fault" in located.reason


def test_without_what_was_before_a_stage_on_several_nodes_is_no_machines_fault() -> None:
    located = find_slow_suspects(groups(), works(lambda rank, step: 1.4 if rank >= 8 else 1.0), TOPOLOGY)
    assert located.suspicions == ()
    assert [found.cause for found in located.harmless] == ["stage_imbalance"]


def test_a_stage_that_got_slow_is_suspect() -> None:
    located = find_slow_suspects(
        groups(), works(lambda rank, step: 1.4 if rank >= 8 else 1.0, healthy_s=lambda rank: 1.0), TOPOLOGY
    )
    assert located.ranks("computation") == tuple(range(8, 16))


def test_a_stage_on_one_node_is_suspect() -> None:
    topology = Topology(Mesh.parse("pp=4,dp=2"), 2)
    located = find_slow_suspects(
        [], works(lambda rank, step: 1.4 if rank in (4, 5) else 1.0, topology=topology), topology
    )
    assert located.ranks("computation") == (4, 5)


def test_a_stage_of_one_rank_is_compared_with_what_it_did_before() -> None:
    topology = Topology(Mesh.parse("pp=4"), 1)

    def healthy_s(rank: int) -> float:
        return 1.0 + 0.3 * rank

    slow = works(lambda rank, step: healthy_s(rank) * (1.5 if rank == 1 else 1.0), healthy_s, topology)
    assert find_slow_suspects([], slow, topology).ranks("computation") == (1,)


def test_slowness_that_moves_about_is_of_the_sequences() -> None:
    chance = random.Random(2)
    long = [chance.randrange(4) for _ in range(STEPS)]
    located = find_slow_suspects(
        groups(), works(lambda rank, step: 1.6 if MESH.coordinates(rank)["dp"] == long[step] else 1.0), TOPOLOGY
    )
    assert located.suspicions == ()
    assert [found.cause for found in located.harmless] == ["sequence_imbalance"]


def test_slowness_that_stays_is_not_of_the_sequences() -> None:
    chance = random.Random(2)
    long = [chance.randrange(4) for _ in range(STEPS)]

    def work_s(rank: int, step: int) -> float:
        return (1.2 if MESH.coordinates(rank)["dp"] == long[step] else 1.0) * (1.5 if rank == 3 else 1.0)

    located = find_slow_suspects(groups(), works(work_s), TOPOLOGY)
    assert located.ranks("computation") == (3,)
    assert located.harmless == ()


def test_collectives_that_take_no_time_are_not_compared() -> None:
    rare = [
        GroupTime(
            group=f"dp:{ranks[0]}",
            kind="dp",
            ranks=tuple(ranks),
            operation="all_reduce",
            bytes=4,
            transfer_s=1e-4 * (5 if 0 in ranks else 1),
        )
        for ranks in MESH.groups("dp")
    ]
    located = find_slow_suspects([*groups(), *rare], works(lambda rank, step: 1.3 if rank == 2 else 1.0), TOPOLOGY)
    assert causes(located) == ["computation"]


def test_groups_of_another_size_or_span_are_not_compared() -> None:
    """A group that crosses nodes is slower than one that does not, and no suspect for it."""
    topology = Topology(Mesh.parse("dp=4,tp=2"), 4)
    times = [
        GroupTime(group="a", kind="ep", ranks=(0, 1), operation="all_to_all", bytes=1 << 20, transfer_s=0.001),
        GroupTime(group="b", kind="ep", ranks=(2, 3), operation="all_to_all", bytes=1 << 20, transfer_s=0.001),
        GroupTime(group="c", kind="ep", ranks=(3, 4), operation="all_to_all", bytes=1 << 20, transfer_s=0.009),
    ]
    located = find_slow_suspects(times, works(topology=topology), topology)
    assert {found.ratio for found in located.suspicions} == {1.0}


def test_the_only_group_of_its_kind_is_compared_with_what_it_did_before() -> None:
    topology = Topology(Mesh.parse("dp=4"), 1)
    lone = GroupTime(
        group="world", kind="dp", ranks=(0, 1, 2, 3), operation="all_reduce", transfer_s=0.05, healthy_s=0.01
    )
    located = find_slow_suspects([lone], works(topology=topology), topology)
    assert [(found.cause, found.ratio) for found in located.suspicions] == [("communication", pytest.approx(5.0))]


def test_where_nothing_differs_everyone_is_tested() -> None:
    located = find_slow_suspects(groups(), works(), TOPOLOGY)
    assert located.ranks("computation") == tuple(range(16))
    assert located.ranks("communication") == tuple(range(16))
    assert located.reason == "no group or rank differs from its peers"


def test_without_times_of_work_the_rank_that_all_wait_for_is_the_suspect() -> None:
    """Rank 5 computes slowly: its TP partner waits for it, and so do the replicas of both."""

    def waiting_s(dim: str, ranks: range) -> tuple[float, ...]:
        if 5 not in ranks and not (dim == "dp" and 4 in ranks):
            return tuple(0.0001 for _ in ranks)
        return tuple(0.0 if rank in (4, 5) and (dim == "dp" or rank == 5) else 0.5 for rank in ranks)

    late = [
        GroupTime(
            group=f"{dim}:{ranks[0]}",
            kind=dim,
            ranks=tuple(ranks),
            operation=OPERATIONS[dim][0],
            bytes=OPERATIONS[dim][1],
            transfer_s=0.01,
            waiting_s=waiting_s(dim, ranks),
        )
        for dim in ("tp", "dp")
        for ranks in MESH.groups(dim)
    ]
    located = find_slow_suspects(late, [], TOPOLOGY)
    assert located.ranks("computation") == (5,)
    assert isinstance(located.suspicions[0], Suspicion)
