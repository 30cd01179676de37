"""Where tensors lie in a shard, and the copies that bring them there."""

from __future__ import annotations

import random

import pytest

from holdfast.trainer.device.copy_plan import ALIGNMENT, SHADOW, Copy, CopyPlan, Mark, plan_copies
from holdfast.trainer.device.guards import CopySizes, Guard, StateTensor

SLICE, MARK = 1024, 2048


def planned(sources: list[StateTensor], guards: list[Guard]) -> CopyPlan:
    return plan_copies(sources, guards, CopySizes(slice_bytes=SLICE, mark_bytes=MARK))


def source(nbytes: int, address: int, storage: int | None = None, owner: int | None = None) -> StateTensor:
    return StateTensor(nbytes, address, address if storage is None else storage, owner)


def test_what_others_wait_for_is_copied_first_and_optimizers_order_is_kept() -> None:
    sources = [source(64, 0), source(64, 1 << 20, owner=1), source(64, 2 << 20), source(64, 3 << 20, owner=0)]
    plan = planned(sources, [Guard.SHADOWED, Guard.GATED, Guard.AWAITED, Guard.GATED])
    assert plan.offsets == (192, 128, 0, 64)
    assert plan.of(Guard.GATED) == [3, 1]
    assert [copy.source for copy in plan.copies] == [2, 3, 1, SHADOW]
    assert plan.marks == (Mark(1, 64), Mark(3, 192), Mark(4, 256))
    assert (plan.awaited, plan.gate, plan.shadow_begin) == (0, 1, 192)


def test_nothing_waits_where_everything_is_shadowed() -> None:
    plan = planned([source(100, 0, owner=0), source(7, 4096)], [Guard.SHADOWED, Guard.SHADOWED])
    assert (plan.awaited, plan.gate, plan.shadow_begin) == (None, None, 0)
    assert plan.copies == (Copy(SHADOW, 0, 192, 0),)


def test_neighbours_in_one_storage_are_one_copy_and_those_of_two_storages_are_not() -> None:
    one = [source(128, 0, 0, 0), source(100, 128, 0, 1), source(64, 256, 0, 2)]
    assert planned(one, [Guard.GATED] * 3).copies == (Copy(0, 0, 320, 0),)
    two = [one[0], one[1]._replace(storage=128)]
    assert planned(two, [Guard.GATED] * 2).copies == (Copy(0, 0, 128, 0), Copy(1, 0, 100, 128))
    apart = [one[0], source(64, 192, 0, 1)]
    assert planned(apart, [Guard.GATED] * 2).copies == (Copy(0, 0, 128, 0), Copy(1, 0, 64, 128))


def test_large_ones_are_cut_at_multiples_of_a_slice_and_reported_on_the_way() -> None:
    plan = planned([source(64, 0, owner=0), source(4000, 1 << 20, owner=1)], [Guard.GATED] * 2)
    assert plan.copies == (
        Copy(0, 0, 64, 0),
        Copy(1, 0, 960, 64),
        Copy(1, 960, 1024, 1024),
        Copy(1, 1984, 1024, 2048),
        Copy(1, 3008, 992, 3072),
    )
    assert plan.marks == (Mark(3, 2048), Mark(5, 4096))
    assert plan.gate == 1


@pytest.mark.parametrize("seed", range(200))
def test_the_copies_of_any_state_bring_each_byte_once_in_order_and_marks_say_how_far(seed: int) -> None:
    draw = random.Random(seed)
    sources, guards, address, storage = [], [], 0, 0
    for _ in range(draw.randint(0, 12)):
        if draw.random() < 0.5:
            address = storage = address + 10_000
        nbytes = draw.choice((0, 1, 64, 100, 128, 900, 5000))
        sources.append(StateTensor(nbytes, address, storage, draw.choice((None, draw.randint(0, 5)))))
        guards.append(draw.choice(list(Guard)))
        address += nbytes if draw.random() < 0.5 else -(-nbytes // ALIGNMENT) * ALIGNMENT
    plan = planned(sources, guards)
    brought = dict[int, int]()
    position = 0
    for source_, begin, nbytes, offset in plan.copies:
        assert 0 < nbytes <= SLICE and offset >= position
        position = offset + nbytes
        if source_ == SHADOW:
            assert offset == plan.shadow_begin + begin
        else:
            assert sources[source_].storage <= sources[source_].address
            for byte in range(nbytes):
                brought[offset + byte] = sources[source_].address + begin + byte
    for index, (it, guard) in enumerate(zip(sources, guards, strict=True)):
        assert plan.offsets[index] % ALIGNMENT == 0 and plan.offsets[index] + it.nbytes <= plan.nbytes
        assert (plan.offsets[index] >= plan.shadow_begin) == (guard is Guard.SHADOWED) or not it.nbytes
        if guard in (Guard.AWAITED, Guard.GATED):
            assert all(brought[plan.offsets[index] + byte] == it.address + byte for byte in range(it.nbytes))
    reached = [mark.up_to for mark in plan.marks]
    assert reached == sorted(reached) and (not plan.copies or reached[-1] == plan.nbytes)
    for mark in plan.marks:
        after = plan.copies[mark.copies :]
        assert all(copy.offset >= mark.up_to for copy in after)
    for index, guard in ((plan.awaited, Guard.AWAITED), (plan.gate, Guard.GATED)):
        waited_for = [copy for copy in plan.copies if copy.source != SHADOW and guards[copy.source] is guard]
        assert (index is None) == (not waited_for)
        assert index is None or set(waited_for) <= set(plan.copies[: plan.marks[index].copies])
