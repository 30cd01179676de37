"""A node's step is backed up when all of its ranks have it elsewhere."""

from __future__ import annotations

import msgspec

from holdfast.node.vault.messages import BackedUp, SealedStep, ShardName
from holdfast.orders.backup import BackupOrder
from holdfast_agent.plan.backup_tally import BackupTally

ORDER = BackupOrder(
    node="n1", job="job", submitted_ms=5, world_size=4, generation=2, node_rank=1, nproc_per_node=2, reason="test"
)


def copy(rank: int, step: int, *, generation: int = 2, skipped: int = 0, submitted_ms: int = 5) -> BackedUp:
    return BackedUp(
        name=ShardName(job="job", submitted_ms=submitted_ms, world_size=4, rank=rank),
        sealed=SealedStep(generation=generation, step=step),
        keeper="n2",
        nbytes=10,
        took_s=rank / 10,
        skipped=skipped,
    )


def test_the_newest_step_of_all_ranks_is_told_once() -> None:
    tally = BackupTally(ORDER)
    tally.add(copy(2, 7))
    tally.add(copy(2, 8))
    assert tally.take() is None
    tally.add(copy(3, 6))
    assert tally.take() is None, "no step is there of both"
    tally.add(copy(3, 7, skipped=2))
    tally.add(copy(3, 8, skipped=1))
    whole = tally.take()
    assert whole is not None
    assert (whole.sealed.step, whole.keeper, whole.nbytes, whole.took_s, whole.skipped) == (8, "n2", 20, 0.3, 3)
    assert tally.take() is None
    for rank in (2, 3):
        tally.add(copy(rank, 9))
    again = tally.take()
    assert again is not None and (again.sealed.step, again.skipped) == (9, 0)


def test_a_later_generation_is_newer_be_its_step_lower() -> None:
    tally = BackupTally(ORDER)
    for sealed in (copy(2, 20, generation=1), copy(3, 20, generation=1)):
        tally.add(sealed)
    first = tally.take()
    assert first is not None and first.sealed.step == 20
    for sealed in (copy(2, 15), copy(3, 15)):
        tally.add(sealed)
    second = tally.take()
    assert second is not None and second.sealed == SealedStep(generation=2, step=15)


def test_ranks_of_other_nodes_and_other_jobs_do_not_count() -> None:
    tally = BackupTally(ORDER)
    for sealed in (copy(0, 7), copy(1, 7), copy(2, 7, submitted_ms=6), copy(3, 7, submitted_ms=6)):
        tally.add(sealed)
    assert tally.take() is None


def test_the_coming_step_is_known_where_the_copies_before_it_were_seen() -> None:
    tally = BackupTally(msgspec.structs.replace(ORDER, coming_step=10))
    for rank in ORDER.ranks:
        tally.add(copy(rank, 8))
    tally.add(copy(ORDER.ranks[0], 10))
    assert tally.coming_step is None
    for rank in ORDER.ranks[1:]:
        tally.add(copy(rank, 10))
    for rank in ORDER.ranks:
        tally.add(copy(rank, 12))
    assert tally.coming_step == 10
    tally.follow(msgspec.structs.replace(ORDER, coming_step=20))
    assert tally.coming_step is None


def test_an_agent_that_came_late_or_missed_a_copy_does_not_know_the_coming_step() -> None:
    late, missed = (BackupTally(msgspec.structs.replace(ORDER, coming_step=10)) for _ in range(2))
    for rank in ORDER.ranks:
        late.add(copy(rank, 11))
        missed.add(copy(rank, 8))
        missed.add(copy(rank, 12, skipped=2))
        for tally in (late, missed):
            tally.add(copy(rank, 13))
    assert late.coming_step is None and missed.coming_step is None
