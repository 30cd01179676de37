"""Which steps stay in a vault's memory: by number, by a limit to the memory, and those that a recovery may need."""

from __future__ import annotations

import errno

import pytest

from holdfast.node.vault import seals
from holdfast.node.vault.messages import SealedStep, ShardName
from holdfast_vault.assignments import job_of
from holdfast_vault.cuts import Cut
from holdfast_vault.shelf import memory_budget
from holdfast_vault.shelf.pins import Pins, StepMark
from holdfast_vault.shelf.segments import SealedContents
from holdfast_vault.shelf.shelf import Shelf
from holdfast_vault.shelf.shelves import Shelves
from holdfast_vault.shelf.wanted_steps import REFUSALS_MAX, SpareMemory, given_back, needed, unwanted

NBYTES = 2 << 20


def at(step: int, generation: int = 1) -> SealedStep:
    return SealedStep(step=step, generation=generation)


def fill(shelf: Shelf, step: int) -> None:
    segment = shelf.claim(NBYTES)
    assert shelf.seal(
        segment, SealedContents(sealed=at(step), index=b"", objects=b"", seal=seals.seal((), segment.memory))
    )


def shelves(of: int, *, nbytes_max: int = 0, steps_wanted: int = 2) -> list[Shelf]:
    names = [ShardName(job="job", submitted_ms=1, world_size=of, rank=rank) for rank in range(of)]
    made = Shelves(nbytes_max, steps_wanted)
    made.serve(job_of(names[0]))
    return [made.of(name) for name in names]


def steps(shelf: Shelf) -> list[int]:
    return [sealed.step for sealed in shelf.steps()]


def test_needed_are_the_newest_what_was_sent_and_what_is_pinned() -> None:
    there = [at(step) for step in (1, 5, 6, 7, 8)]
    assert needed(there, {at(5), at(4)}, {at(1)}) == {at(8), at(7), at(5), at(1)}
    assert needed(there, (), ()) == {at(8), at(7)}
    assert needed([], {at(5)}, {at(1)}) == frozenset()
    # A later generation went back.
    assert needed([at(9), at(8), at(3, 2)], (), ()) == {at(3, 2), at(9)}


def test_unwanted_is_what_is_over_the_number_but_for_what_is_needed() -> None:
    there = [at(step) for step in range(1, 7)]
    assert unwanted(there, {at(1)}, 3) == (at(2), at(3))
    assert unwanted(there, (), 6) == ()


def test_what_is_empty_is_given_back_first_then_the_oldest() -> None:
    spares = [SpareMemory(at(3), 10, 0), SpareMemory(None, 5, 1), SpareMemory(at(2), 10, 2)]
    assert given_back(spares, 0) == ()
    assert given_back(spares, 4) == (spares[1],)
    assert given_back(spares, 6) == (spares[1], spares[2])
    assert given_back(spares, 25) == (spares[1], spares[2], spares[0])
    assert given_back(spares, 26) is None


def test_a_shelf_keeps_as_many_steps_as_are_wanted() -> None:
    (shelf,) = shelves(1, steps_wanted=4)
    for step in range(1, 9):
        fill(shelf, step)
        shelf.stock(NBYTES)
    assert steps(shelf) == [8, 7, 6, 5, 4]


def test_what_is_pinned_or_was_sent_stays_whatever_comes() -> None:
    (shelf,) = shelves(1)
    for step in range(1, 3):
        fill(shelf, step)
    shelf.pin(Pins(certified=StepMark(1, 1)))
    shelf.note_sent(at(2))
    for step in range(3, 9):
        fill(shelf, step)
    assert {1, 2, 7, 8} <= set(steps(shelf))
    shelf.pin(None)
    shelf.forget_sent()
    for step in range(9, 12):
        fill(shelf, step)
    assert not {1, 2} & set(steps(shelf))


def test_at_the_limit_the_oldest_that_nobody_needs_make_room_be_it_another_rank_s() -> None:
    one, other = shelves(2, nbytes_max=8 * NBYTES, steps_wanted=5)
    for step in range(1, 6):
        fill(one, step)
    for step in range(1, 4):
        fill(other, step)
    assert (steps(one), steps(other)) == ([5, 4, 3, 2, 1], [3, 2, 1])
    fill(other, 4)
    assert (steps(one), steps(other)) == ([5, 4, 3, 2], [4, 3, 2, 1])
    fill(other, 5)
    assert sorted(steps(one) + steps(other)) == [2, 2, 3, 3, 4, 4, 5, 5]


def test_what_a_recovery_needs_is_not_given_for_the_limit() -> None:
    one, other = shelves(2, nbytes_max=4 * NBYTES, steps_wanted=5)
    for shelf in (one, other):
        fill(shelf, 1)
        fill(shelf, 2)
    with pytest.raises(OSError, match="limit") as refused:
        one.claim(NBYTES)
    assert refused.value.errno == errno.ENOMEM
    assert (steps(one), steps(other)) == ([2, 1], [2, 1])


def test_memory_that_is_in_use_is_not_given_back() -> None:
    (shelf,) = shelves(1, nbytes_max=3 * NBYTES, steps_wanted=5)
    for step in (1, 2, 3):
        fill(shelf, step)
    with shelf.holding(at(1)) as held:
        assert held is not None
        with pytest.raises(OSError, match="limit"):
            shelf.claim(NBYTES)
    fill(shelf, 4)
    assert steps(shelf) == [4, 3, 2]


def test_what_former_keepers_have_is_given_back_for_want_of_memory_but_for_a_certified_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = [ShardName(job="job", submitted_ms=1, world_size=2, rank=rank) for rank in range(2)]
    left = [names[1]]
    made = Shelves(left=lambda _: left)
    made.serve(job_of(names[0]))
    made.pin(Pins(certified=StepMark(generation=1, step=1)))
    own, other = (made.of(name) for name in names)
    monkeypatch.setattr(memory_budget, "available_bytes", lambda: (5 - _segments(own, other)) * NBYTES)
    for shelf, last in ((other, 3), (own, 2)):
        for step in range(1, last + 1):
            fill(shelf, step)
    with other.holding(at(3)):
        fill(own, 3)
        # What is certified and what is being read stay.
        assert (steps(own), steps(other)) == ([3, 2, 1], [3, 1])
    left.clear()
    with pytest.raises(OSError, match="memory"):
        fill(own, 4)
    left.append(names[1])
    fill(own, 4)
    assert (steps(own), steps(other)) == ([4, 3, 2, 1], [1])


def _segments(*shelves: Shelf) -> int:
    return sum(len(shelf._segments) for shelf in shelves)


def test_the_floor_gives_way_to_a_save_that_has_no_other_memory() -> None:
    one, other = shelves(2, nbytes_max=6 * NBYTES)
    for shelf in (one, other):
        fill(shelf, 1)
        shelf.keep_only(Cut(generation=1, at_ns=1, kept=at(1)))
        shelf.pin(None)
        for step in (2, 3):
            fill(shelf, step)
    assert (steps(one), steps(other)) == ([3, 2, 1], [3, 2, 1])
    # One after the other, and what is only wanted before it.
    fill(one, 4)
    assert (steps(one), steps(other)) == ([4, 3, 2], [3, 2, 1])


def test_a_pin_is_given_up_when_a_rank_is_refused_again_and_again() -> None:
    (shelf,) = shelves(1, nbytes_max=3 * NBYTES)
    for step in (1, 2, 3):
        fill(shelf, step)
    shelf.pin(Pins(certified=StepMark(1, 1)))
    for _ in range(REFUSALS_MAX):
        with pytest.raises(OSError, match="limit"):
            shelf.claim(NBYTES)
    for step in (4, 5):
        fill(shelf, step)
    assert steps(shelf) == [5, 4, 3]
