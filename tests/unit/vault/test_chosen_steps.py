"""Which of the steps that a job keeps are sent and written: a script need not keep the multiples of a distance."""

from __future__ import annotations

import pytest

from holdfast.node.vault import seals
from holdfast.node.vault.messages import SealedStep, ShardName
from holdfast.orders.backup import BackupOrder, begins_block
from holdfast.trainer.checkpoint.pace.spacing import is_kept
from holdfast_vault.last_steps import LastSteps
from holdfast_vault.shelf.segments import SealedContents
from holdfast_vault.shelf.shelf import Shelf

NAME = ShardName(job="job", submitted_ms=1, world_size=2, rank=0)
STEPS = 4000
EVERY = (1, 3, 8, 16, 64, 500, 512)


def at(step: int, generation: int = 1) -> SealedStep:
    return SealedStep(step=step, generation=generation)


def kept(stride: int, spacing: int, after: int = 0) -> list[int]:
    """The steps that a job keeps after one: its script has one in `stride`, of which it keeps as ADR 58 has it."""
    found, before = [], after or None
    for step in range(after + stride - after % stride, STEPS, stride):
        if is_kept(step, before, spacing):
            found.append(step)
        before = step
    return found


def chosen(steps: list[int], every: int, last: LastSteps) -> list[int]:
    return [step for step in steps if begins_block(step, last.take(NAME, at(step)), every)]


def empty(_: ShardName) -> Shelf:
    return Shelf("job")


@pytest.mark.parametrize("spacing", [1, 2, 4, 32])
@pytest.mark.parametrize("stride", [1, 2, 3, 7, 10, 100])
def test_the_first_step_of_each_block_is_chosen_whatever_the_job_keeps(stride: int, spacing: int) -> None:
    for every in EVERY:
        there, last = kept(stride, spacing), LastSteps(empty)
        last.went_on(NAME, 1, None)
        found = chosen(there, every, last)
        blocks = {step // every for step in there} - {0}
        assert [step // every for step in found] == sorted(blocks), f"one of each block, every {every}"
        assert all(step == min(it for it in there if it // every == step // every) for step in found)


@pytest.mark.parametrize("stride", [1, 2, 3, 7, 10, 100])
@pytest.mark.parametrize("at_step", [64, 100, 999])
def test_ranks_that_know_different_pasts_choose_the_same_steps(stride: int, at_step: int) -> None:
    """One was there all the time, one's vault took over from another one, one's lost everything at some step."""
    for every in EVERY:
        for spacing in (1, 8):
            there = kept(stride, spacing)
            split = next(number for number, step in enumerate(there) if step >= at_step)
            last = LastSteps(empty)
            always = chosen(there[:split], every, last), chosen(there[split:], every, last)

            shelf = Shelf("job")
            segment = shelf.claim(1 << 20)
            notes = {"index": b"", "objects": b"", "seal": seals.seal((), segment.memory)}
            shelf.seal(segment, SealedContents(sealed=at(there[split - 1]), **notes))
            assert chosen(there[split:], every, LastSteps(lambda _, shelf=shelf: shelf)) == always[1]

            fresh = chosen(there[split:], every, LastSteps(empty))
            assert fresh in (always[1], always[1][1:]), "at most the first is missed, and none is chosen alone"


@pytest.mark.parametrize("stride", [1, 2, 3, 7, 10, 100])
def test_all_ranks_of_a_generation_begin_to_count_at_the_step_that_it_went_on_from(stride: int) -> None:
    """Also one whose shard came from the disk, and one that was not there before."""
    for every in EVERY:
        restored = kept(stride, 1)[700 // stride]
        there = kept(stride, 1, restored)
        was_there, is_new = LastSteps(empty), LastSteps(empty)
        was_there.take(NAME, at(restored + 9 * stride))
        for last in (was_there, is_new):
            last.went_on(NAME, 2, at(restored))
        found = [
            [step for step in there if begins_block(step, last.take(NAME, at(step, 2)), every)]
            for last in (was_there, is_new)
        ]
        assert found[0] == found[1]
        assert found[0][0] == next(step for step in there if step // every > restored // every)


def test_a_change_of_the_distance_that_comes_late_to_a_node_costs_no_more_than_the_steps_between() -> None:
    """Distances are powers of two: what the wider one chooses, the closer one does, too."""
    for stride in (1, 3, 7, 10, 100):
        there = kept(stride, 1)
        close, wide = (chosen(there, every, LastSteps(empty)) for every in (64, 512))
        assert {*wide} <= {*close} and len(wide) >= STEPS // max(512, stride) - 1


def test_an_order_says_which_of_them_go_where() -> None:
    order = BackupOrder(
        node="a", job="job", submitted_ms=1, world_size=2, generation=1, node_rank=0, nproc_per_node=1, every=8
    )
    assert order.is_sent(10, 5) and not order.is_sent(15, 10)
    assert not order.is_persisted(10, 5), "none was asked for"
