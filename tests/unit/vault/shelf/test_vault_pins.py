"""Which steps stay in memory so that a job can go back behind bad numbers, and what one that goes on leaves there."""

from __future__ import annotations

import msgspec

from holdfast.node.vault import seals
from holdfast.node.vault.messages import SealedStep, ShardName
from holdfast.orders.backup import BackupOrder, VaultAddress
from holdfast_vault.assignments import job_of
from holdfast_vault.cuts import Cut
from holdfast_vault.shelf.pins import Pins, StepMark, floor, in_the_past_of, pinned, pins_of
from holdfast_vault.shelf.segments import SealedContents
from holdfast_vault.shelf.shelf import Shelf
from holdfast_vault.shelf.shelves import Shelves

NBYTES = 1 << 20
NAME = ShardName(job="job", submitted_ms=1, world_size=2, rank=0)


def at(step: int, generation: int = 1) -> SealedStep:
    return SealedStep(step=step, generation=generation)


def shelf_with(*steps: SealedStep, pins: Pins) -> Shelf:
    shelves = Shelves()
    shelves.serve(job_of(NAME))
    shelves.pin(pins)
    shelf = shelves.of(NAME)
    for step in steps:
        fill(shelf, step)
    return shelf


def fill(shelf: Shelf, sealed: SealedStep) -> bool:
    segment = shelf.claim(NBYTES)
    contents = SealedContents(sealed=sealed, index=b"", objects=b"", seal=seals.seal((), segment.memory))
    return shelf.seal(segment, contents)


def test_until_a_step_is_named_the_oldest_stays() -> None:
    there = [at(3), at(7), at(8)]
    assert pinned(there, Pins()) == {at(3)}
    assert pinned(there, Pins(coming=StepMark(1, 7))) == {at(3), at(7)}
    assert pinned(there, Pins(certified=StepMark(1, 7), coming=StepMark(1, 20))) == {at(7)}
    assert pinned([], Pins()) == frozenset()
    assert pinned(there, None) == frozenset()


def test_what_is_named_is_the_first_from_there_on_that_was_made() -> None:
    there = [at(step) for step in (5, 10, 15, 20)]
    assert StepMark(1, 6).found_in(there) == at(10)
    assert StepMark(1, 21).found_in(there) is None


def test_a_step_of_the_same_number_that_another_generation_made_is_another_one() -> None:
    assert pinned([at(7, 1), at(7, 2)], Pins(certified=StepMark(1, 7))) == {at(7, 1)}


def test_an_order_names_steps_with_the_generations_that_made_them() -> None:
    order = BackupOrder(
        node="a",
        job="job",
        submitted_ms=1,
        world_size=2,
        generation=3,
        node_rank=0,
        nproc_per_node=1,
        certified_step=40,
        certified_generation=1,
        coming_step=90,
    )
    assert pins_of(order) == Pins(certified=StepMark(1, 40), coming=StepMark(3, 90))


def test_the_coming_step_is_one_that_is_sent() -> None:
    """A job that keeps one step in ten sends the first of each block: none of the block that 90 is in, but for 90."""
    order = BackupOrder(
        node="a",
        job="job",
        submitted_ms=1,
        world_size=2,
        generation=3,
        node_rank=0,
        nproc_per_node=1,
        coming_step=90,
        every=16,
    )
    assert pins_of(order).coming == StepMark(3, 90)  # there are no copies
    order = msgspec.structs.replace(order, keeper=VaultAddress(node="b", host="127.0.0.1", port=1))
    coming = pins_of(order).coming
    assert coming == StepMark(3, 96) and coming.found_in([at(step, 3) for step in (90, 100, 110)]) == at(100, 3)
    assert order.is_sent(100, 90) and not order.is_sent(90, 80)


def test_what_is_named_stays_and_what_is_named_no_more_goes() -> None:
    shelf = shelf_with(*map(at, range(1, 6)), pins=Pins(coming=StepMark(1, 4)))
    for step in range(6, 10):
        fill(shelf, at(step))
    assert {at(1), at(4), at(8), at(9)} <= set(shelf.steps())
    shelf.pin(Pins(certified=StepMark(1, 4), coming=StepMark(1, 11)))
    for step in range(10, 16):
        fill(shelf, at(step))
    assert {at(4), at(11), at(14), at(15)} <= set(shelf.steps())
    assert at(1) not in shelf.steps()


def test_who_goes_on_leaves_the_named_steps_behind_it_in_place_and_no_other() -> None:
    shelf = shelf_with(*map(at, range(1, 10)), pins=Pins(certified=StepMark(1, 2), coming=StepMark(1, 6)))
    assert shelf.past_of(at(8)) == (at(2), at(6))
    shelf.keep_only(Cut(generation=2, at_ns=1, kept=at(8), behind=shelf.past_of(at(8))))
    assert shelf.steps() == [at(8), at(6), at(2)]
    # A copy that comes late, of a step between them, is of no use any more.
    assert not fill(shelf, at(7))
    # Back behind bad numbers: what came after is given up for good.
    shelf.keep_only(Cut(generation=3, at_ns=2, kept=at(2), behind=shelf.past_of(at(2))))
    assert shelf.steps() == [at(2)]
    assert not fill(shelf, at(6)) and not fill(shelf, at(8))
    assert fill(shelf, at(3, 3))


def test_who_has_nothing_of_what_was_before_leaves_it_to_others_all_the_same() -> None:
    shelf = shelf_with(at(8), pins=Pins(certified=StepMark(1, 2), coming=StepMark(2, 20)))
    assert shelf.past_of(at(8)) == (at(2),)
    assert shelf.past_of(at(1)) == ()


def test_who_begins_anew_has_nothing_behind_it() -> None:
    assert in_the_past_of(None, {at(2)}) == ()
    assert in_the_past_of(at(5, 2), {at(2), at(7), at(1, 3)}) == (at(2),)


def test_the_step_that_a_generation_went_on_from_stays_until_a_later_one_is_known_to_be_complete() -> None:
    shelf = shelf_with(*map(at, range(1, 10)), pins=Pins(certified=StepMark(1, 2)))
    shelf.keep_only(Cut(generation=2, at_ns=1, kept=at(8), behind=(at(2),)))
    for step in range(9, 20):
        fill(shelf, at(step, 2))
    assert {at(2), at(8), at(18, 2), at(19, 2)} <= set(shelf.steps())
    shelf.pin(Pins(certified=StepMark(1, 2), complete=StepMark(2, 18)))
    for step in range(20, 30):
        fill(shelf, at(step, 2))
    assert {at(2), at(18, 2), at(28, 2), at(29, 2)} <= set(shelf.steps())
    assert at(8) not in shelf.steps()
    # The next generation goes on from a later step, which all ranks have.
    assert shelf.past_of(at(29, 2)) == (at(2), at(18, 2))
    shelf.keep_only(Cut(generation=3, at_ns=2, kept=at(29, 2), behind=shelf.past_of(at(29, 2))))
    for step in range(30, 40):
        fill(shelf, at(step, 3))
    assert {at(2), at(29, 2)} <= set(shelf.steps()) and at(18, 2) not in shelf.steps()


def test_a_floor_is_the_newest_of_what_is_known_to_be_everywhere() -> None:
    there = [at(2), at(8), at(9, 2), at(12, 2)]
    cut = Cut(generation=2, at_ns=1, kept=at(8))
    assert floor(there, None, None) == floor(there, Pins(), None) == frozenset()
    assert floor(there, Pins(certified=StepMark(1, 2)), None) == {at(2)}
    assert floor(there, Pins(certified=StepMark(1, 2)), cut) == floor(there, None, cut) == {at(8)}
    assert floor(there, Pins(certified=StepMark(2, 9)), cut) == {at(9, 2)}
    assert floor(there, Pins(certified=StepMark(2, 9), complete=StepMark(2, 12)), cut) == {at(12, 2)}
    assert floor(there, Pins(certified=StepMark(1, 2)), Cut(generation=2, at_ns=1, kept=None)) == frozenset()
    assert floor([at(9, 2)], None, cut) == frozenset()


def test_a_frozen_step_stays_beside_the_newest_until_the_job_goes_on_from_another() -> None:
    pins = Pins(certified=StepMark(1, 1), frozen=StepMark(1, 4))
    shelf = shelf_with(*map(at, range(1, 10)), pins=pins)
    assert {at(1), at(4), at(8), at(9)} <= {*shelf.steps()} and len(shelf._segments) == 5
    assert not floor([at(5), at(6)], Pins(frozen=StepMark(1, 4)), None), "only that step is common to all ranks"
    shelf.pin(pins._replace(frozen=None))
    for step in (10, 11):
        fill(shelf, at(step))
    assert at(4) not in shelf.steps()
    cut = Cut(generation=2, at_ns=1, kept=at(9))
    assert floor([at(4), at(9)], pins, cut) == {at(9)}


def test_two_steps_are_common_to_all_ranks_unless_an_older_one_should_be_here() -> None:
    shelf = shelf_with(at(8), at(9), pins=Pins())
    assert shelf.has_common_step(shelf.steps())
    assert not shelf.has_common_step([at(9)])
    for pins in (Pins(frozen=StepMark(1, 4)), Pins(complete=StepMark(1, 4))):
        shelf.pin(pins)
        assert not shelf.has_common_step(shelf.steps()), "this vault has lost what it held"
        there = shelf_with(at(4), at(8), at(9), pins=pins)
        assert there.has_common_step(there.steps())
