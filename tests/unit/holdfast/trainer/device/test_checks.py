"""The sums by which a copy is compared with what the device had."""

from __future__ import annotations

import pytest
import torch

from holdfast.trainer.device.checks import EVERY, FIRST, Writes, has_words, interval, is_checked, sum_of


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
