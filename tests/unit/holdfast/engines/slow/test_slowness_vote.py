"""The parallel group that is flagged most in five rounds of stacks."""

from __future__ import annotations

import random

from holdfast.engines.slow.stack_vote import MACHINE, VotedGroup, counts, degrader, flagged
from holdfast.topology import Mesh

MESH = Mesh.parse("pp=4,dp=4,tp=2")
ROUNDS = 5


def group(rank: int, dim: str) -> VotedGroup:
    return VotedGroup(kind=dim, ranks=tuple(MESH.group_of(rank, dim)))


def test_the_group_with_most_outliers_is_flagged() -> None:
    pipeline = MESH.group_of(5, "pp")
    assert flagged(pipeline, MESH) == group(5, "pp")
    assert flagged({*pipeline[:3], 0}, MESH) == group(5, "pp")
    assert flagged(MESH.group_of(7, "dp"), MESH) == group(7, "dp")


def test_one_outlier_flags_its_smallest_group() -> None:
    assert flagged({9}, MESH) == group(9, "tp")


def test_a_machine_is_a_group_too_and_the_smallest_that_has_them_all() -> None:
    machine = VotedGroup(kind=MACHINE, ranks=(8, 9))
    assert flagged({9}, MESH, 2) == flagged({8, 9}, MESH, 2) == machine
    assert flagged(MESH.group_of(5, "pp"), MESH, 2) == group(5, "pp")
    # Of a job that is replicas alone nothing smaller is there to be flagged, and all ranks are no outliers' group.
    assert flagged({1}, Mesh.parse("dp=4"), 1) == VotedGroup(kind=MACHINE, ranks=(1,))
    assert flagged({1}, Mesh.parse("dp=4")) is None


def test_nobody_is_flagged_where_there_is_no_outlier_or_most_are() -> None:
    assert flagged((), MESH) is None
    assert flagged(range(20), MESH) is None
    assert flagged({0}, Mesh.parse("dp=1")) is None


def test_the_group_flagged_most_often_is_the_degrader() -> None:
    rounds = [group(5, "pp"), group(0, "dp"), group(5, "pp"), None, group(5, "pp")]
    vote = degrader(rounds)
    assert vote.degrader == group(5, "pp")
    assert vote.flagged == ((group(5, "pp"), 3), (group(0, "dp"), 1))
    assert vote.rounds == ROUNDS
    assert vote.reason == "the pp group of ranks 5, 13, 21, 29 was flagged in 3 of 5 rounds"
    assert 0.5 < vote.confidence < degrader([group(5, "pp")] * ROUNDS).confidence < 1.0


def test_outliers_that_move_about_evict_nobody() -> None:
    chance = random.Random(1)
    rounds = [flagged({chance.randrange(MESH.world_size)}, MESH) for _ in range(ROUNDS)]
    vote = degrader(rounds)
    assert vote.degrader is None
    assert "move about" in vote.reason


def test_rounds_without_outliers_say_so() -> None:
    assert degrader([None] * ROUNDS).reason == "no round had outliers"


def test_a_round_counts_if_the_unread_ranks_cannot_change_who_is_most() -> None:
    assert counts(3, 1, 3)
    assert counts(2, 0, 2)
    assert counts(7, 0, 8)
    # With one outlier and three unread ranks the other four are half of the job, and no majority.
    assert counts(6, 1, 8)
    assert not counts(5, 1, 8)
    # Two ranks that were read have no majority: none could have been an outlier.
    assert not counts(2, 0, 3)
    assert not counts(0, 0, 3)
    assert not counts(499, 0, 1000)
    assert counts(900, 100, 1000)


def test_where_few_rounds_count_a_group_must_be_flagged_in_most_of_the_planned_ones() -> None:
    machine = VotedGroup(kind=MACHINE, ranks=(2,))
    vote = degrader([machine, machine], planned=ROUNDS, discarded=8)
    assert vote.degrader is None
    assert vote.reason == (
        "the machine of rank 2 was flagged in 2 of 2 rounds, no more than half of the 5 planned; "
        "in 8 rounds too few ranks could be read"
    )
    assert degrader([machine] * 3, planned=ROUNDS, discarded=7).degrader == machine
    assert degrader([machine] * 3, planned=ROUNDS, discarded=7).confidence < degrader([machine] * 3).confidence


def test_rounds_that_all_do_not_count_name_nobody_and_say_why() -> None:
    vote = degrader([], planned=ROUNDS, discarded=10)
    assert (vote.degrader, vote.flagged, vote.confidence) == (None, (), 0.0)
    assert vote.reason == "no group is named: in each of 10 rounds too few ranks could be read"
