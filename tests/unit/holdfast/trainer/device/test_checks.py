"""The sums by which a copy is compared with what the device had."""

from __future__ import annotations

import pytest
import torch

from holdfast.trainer.device.checks import (
    BLOCK_BYTES,
    EVERY,
    FIRST,
    SAMPLED_MAX,
    Samples,
    Writes,
    has_words,
    interval,
    is_checked,
    sum_of,
)
from holdfast.trainer.device.copy_plan import SHADOW, Copy


def test_the_first_steps_are_checked_and_then_some() -> None:
    checked = [kept for kept in range(200) if is_checked(kept)]
    assert checked == [*range(FIRST), EVERY, 2 * EVERY, 3 * EVERY]
    assert not any(is_checked(kept, every=0) for kept in range(200))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.uint8, torch.bool])
def test_a_sum_is_another_when_a_single_element_changes(dtype: torch.dtype) -> None:
    tensor = torch.ones(1001, dtype=dtype)
    before = sum_of(tensor, in_words=has_words(tensor))
    tensor[500] = 0
    assert before != sum_of(tensor, in_words=has_words(tensor))


def test_pairs_of_equal_elements_do_not_cancel_out() -> None:
    sums = {int(sum_of(torch.full((1000,), value), in_words=True)) for value in (0.0, 1.0, 2.0)}
    assert len(sums) == 3


def test_memory_that_begins_between_words_is_read_in_bytes() -> None:
    whole = torch.arange(9, dtype=torch.bfloat16)
    part = whole[1:9]
    assert has_words(whole[:8]) and not has_words(part)
    assert sum_of(part, in_words=False) == sum_of(part.clone(), in_words=False)


def test_an_interval_that_is_no_number_is_named_and_the_default_counts(caplog: pytest.LogCaptureFixture) -> None:
    assert (interval("0"), interval("16")) == (0, 16) and not caplog.records
    for wrong in ("often", "-1", ""):
        assert interval(wrong) == EVERY
    assert "HOLDFAST_DEVICE_CHECK_EVERY is 'often'" in caplog.text


def test_a_write_counts_until_an_optimizer_comes_to_the_gate() -> None:
    weight = torch.nn.Parameter(torch.zeros(4))
    optimizer = torch.optim.SGD([weight], lr=0.1, foreach=True)
    weight.grad = torch.ones(4)

    def written(before: bool, gated: bool) -> bool:
        # What a state has of a parameter is detached.
        writes = Writes([weight.detach()])
        if before:
            weight.detach().zero_()
        if gated:
            writes.at_gate()
            optimizer.step()
            writes.at_gate()  # of the next optimizer
        return writes.were_made()

    cases = ((False, False), (True, False), (False, True), (True, True))
    assert [written(before, gated) for before, gated in cases] == [False, True, False, True]
    with torch.inference_mode():
        made = torch.zeros(4)
    assert not Writes([made]).were_made()


def test_blocks_that_are_put_aside_show_a_writer_of_a_whole_model_that_comes_at_any_moment_of_the_copies() -> None:
    """The copies are large, small, large again, and one of shadows."""
    sizes = (5 * BLOCK_BYTES, 100, 3 * BLOCK_BYTES, 2 * BLOCK_BYTES)
    begins = [64 + sum(sizes[:number]) for number in range(len(sizes) + 1)]
    parts = [torch.full((size,), 1, dtype=torch.uint8) for size in sizes]
    copies = [Copy(*it) for it in zip((0, 1, 2, SHADOW), (0,) * 4, sizes, begins[:-1], strict=True)]
    samples = Samples(parts, copies)
    parts[0].fill_(9)  # what came counts, not what is there by now
    landed = torch.full((begins[-1],), 1, dtype=torch.uint8)
    assert not samples.differ(landed)

    def came(begin: int, end: int) -> torch.Tensor:
        return torch.cat([landed[:begin], torch.zeros(end - begin, dtype=torch.uint8), landed[end:]])

    for moment in range(64, begins[3], 1000):
        assert samples.differ(came(moment, begins[3])), "written to from this byte on"
        assert moment == 64 or samples.differ(came(64, moment)), "and written back from it on"
    assert not samples.differ(came(begins[3], begins[4])), "a shadow is not compared"
    assert not Samples(parts[3:], copies[3:]).differ(landed)


def test_of_very_many_copies_each_is_compared_in_its_turn() -> None:
    count, nbytes = 3 * SAMPLED_MAX - 5, 64
    parts = [torch.zeros(nbytes, dtype=torch.uint8) for _ in range(count)]
    copies = [Copy(number, 0, nbytes, number * nbytes) for number in range(count)]
    for changed in (0, 1, 2, count // 2, count - 1):
        landed = torch.zeros(count * nbytes, dtype=torch.uint8)
        landed[changed * nbytes] = 1
        found = [Samples(parts, copies, turn).differ(landed) for turn in range(3)]
        assert sum(found) == (3 if changed == 0 else 1), changed
