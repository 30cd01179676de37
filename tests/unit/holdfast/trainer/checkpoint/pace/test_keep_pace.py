"""Which steps a rank keeps, by what keeping costs it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast.trainer.checkpoint.pace.agreement import Agreed, Alone
from holdfast.trainer.checkpoint.pace.keep_pace import NOT_MEASURED, KeepPace
from holdfast.trainer.checkpoint.pace.meters import HostMeter
from holdfast.trainer.checkpoint.pace.rank_pace import SHARE_MAX, share_max
from holdfast.trainer.checkpoint.pace.spacing import EVERY_MAX, WINDOW, Limit

LIMIT = Limit(share=0.02, keep_s=0.001)


class Training:
    """Steps of a second each, by a clock of its own. `cost_s` has the seconds that a kept step takes, by its number and
    by the one kept before."""

    def __init__(self, cost_s: Callable[[int, int], float], *, is_limited: bool = True, stride: int = 1) -> None:
        self.now = 0.0
        self.stride = stride
        self.step = 0
        self.kept: list[int] = []
        self.changes: list[tuple[int, Agreed]] = []
        self._cost_s = cost_s
        self.pace = KeepPace(
            Alone() if is_limited else None,
            LIMIT,
            meter=lambda samples: HostMeter(samples, clock=lambda: self.now),
            on_change=lambda step, agreed: self.changes.append((step, agreed)),
        )

    def until(self, last: int) -> None:
        while self.step < last:
            self.now += self.stride
            self.step += self.stride
            self.pace.keep(self.step, self._keep)

    def _keep(self) -> bool:
        self.now += self._cost_s(self.step, self.kept[-1] if self.kept else 0)
        self.kept.append(self.step)
        return True


def test_every_step_is_kept_while_that_costs_less_than_the_limit() -> None:
    training = Training(lambda step, before: 0.0199)
    training.until(50 * WINDOW)
    assert training.kept == list(range(1, 50 * WINDOW + 1)) and not training.changes


def test_what_costs_too_much_is_kept_so_seldom_that_it_costs_less_than_the_limit() -> None:
    training = Training(lambda step, before: 0.11)
    training.until(60 * WINDOW)
    assert [agreed.every for _, agreed in training.changes] == [2, 4, 8]
    assert [step for step, _ in training.changes] == [WINDOW, 2 * WINDOW, 3 * WINDOW]
    first = training.changes[0][1].objection
    assert first is not None and first.costs == pytest.approx((0.11, 1.0))
    late = [step for step in training.kept if step >= 4 * WINDOW]
    assert late == list(range(4 * WINDOW, 60 * WINDOW + 1, 8))


def test_a_step_that_holds_up_the_next_one_until_it_is_sealed_costs_nothing_with_every_second() -> None:
    """Sealing takes 1.5 s of steps of 1 s. Every step is tried again, more and more rarely."""
    training = Training(lambda step, before: max(0.0, 1.5 - (step - before)))
    training.until(120 * WINDOW)
    assert {agreed.every for _, agreed in training.changes} == {1, 2}
    at_every_step = sum(1 for one, two in zip(training.kept, training.kept[1:], strict=False) if two == one + 1)
    assert at_every_step < 8 * WINDOW


def test_when_it_costs_less_again_every_step_is_kept_again() -> None:
    training = Training(lambda step, before: 0.5 if step < 10 * WINDOW else 0.001)
    training.until(10 * WINDOW)
    assert training.pace.every == EVERY_MAX
    training.until(90 * WINDOW)
    assert training.pace.every == 1
    assert training.kept[-WINDOW:] == list(range(89 * WINDOW + 1, 90 * WINDOW + 1))


@pytest.mark.parametrize("cost_s", [0.15, 5.0])
@pytest.mark.parametrize("stride", [2, 10, 100])
def test_a_script_that_leaves_steps_out_itself_keeps_all_others(stride: int, cost_s: float) -> None:
    training = Training(lambda step, before: cost_s, stride=stride)
    training.until(50 * WINDOW)
    assert training.kept == list(range(stride, 50 * WINDOW + stride, stride))[: len(training.kept)]
    assert training.kept[-1] == training.step and not training.changes


def test_what_an_optimizer_waits_for_copies_is_a_cost_of_the_step_that_was_kept() -> None:
    """The vault tells it with the answer to the next save."""
    now, waited = [0.0], [0.0, 0.0]
    pace = KeepPace(Alone(), LIMIT, meter=lambda samples: HostMeter(samples, lambda: waited[0], lambda: now[0]))

    def keep() -> bool:
        waited[0], waited[1] = waited[0] + waited[1], 0.04
        return True

    for step in range(1, 20 * WINDOW):
        now[0] += 1.0 + waited[1]
        pace.keep(step, keep)
        if step % 5 == 0:
            waited[0] = waited[1] = 0.0  # another vault
    assert pace.every == 2


def test_the_first_steps_of_a_process_say_nothing() -> None:
    training = Training(lambda step, before: 5.0 if step <= NOT_MEASURED else 0.0)
    training.until(20 * WINDOW)
    assert not training.changes and len(training.kept) == 20 * WINDOW


def test_a_single_slow_step_says_nothing() -> None:
    training = Training(lambda step, before: 5.0 if step % 5 == 0 else 0.0)
    training.until(20 * WINDOW)
    assert not training.changes


def test_without_a_limit_every_step_is_kept() -> None:
    training = Training(lambda step, before: 5.0, is_limited=False)
    training.until(5 * WINDOW)
    assert training.kept == list(range(1, 5 * WINDOW + 1))


def test_steps_that_the_vault_refuses_cost_nothing_and_say_nothing() -> None:
    now = [0.0]

    def refused() -> bool:
        now[0] += 2.0
        return False

    pace = KeepPace(Alone(), LIMIT, meter=lambda samples: HostMeter(samples, clock=lambda: now[0]))
    for step in range(1, 10 * WINDOW):
        now[0] += 1.0
        assert not pace.keep(step, refused)
    assert pace.every == 1


@pytest.mark.parametrize(("text", "share"), [("", SHARE_MAX), ("0", 0.0), ("0.1", 0.1), ("1", 1.0)])
def test_the_limit_is_a_share(text: str, share: float, caplog: pytest.LogCaptureFixture) -> None:
    assert share_max(text) == share and not caplog.records


@pytest.mark.parametrize("text", ["2 %", "-1", "1.5", "nan", "off"])
def test_a_limit_that_is_none_is_logged(text: str, caplog: pytest.LogCaptureFixture) -> None:
    assert share_max(text) == SHARE_MAX and "HOLDFAST_KEEP_COST_MAX" in caplog.text
