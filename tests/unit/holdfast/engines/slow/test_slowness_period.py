"""Iteration times from the collectives that a rank calls."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from holdfast.engines.slow.autocorrelation import LOST, find_period, pattern_of
from holdfast.engines.slow.calls import CollectiveCall, IterationTime
from holdfast.engines.slow.period import CALLS_MAX, IterationClock

Call = tuple[str, str, int]
MiB = 1 << 20

FORWARD: list[Call] = [("all_reduce", "tp", MiB)] * 4 + [("send", "pp", MiB), ("recv", "pp", MiB)]
SYNC: list[Call] = [("reduce_scatter", "dp", 64 * MiB), ("all_gather", "dp", 64 * MiB), ("all_reduce", "world", 4)]
TRAINING = FORWARD * 2 + SYNC
WARM_UP: list[Call] = [("broadcast", "world", size) for size in range(40)] + [("barrier", "world", 0)]
EVALUATION: list[Call] = [("all_reduce", "tp", MiB // 2)] * 4 * 10 + [("all_reduce", "world", 8)]


class Rank:
    """A rank that calls, and what its clock tells of it."""

    def __init__(self, seed: int = 1, lost: float = 0.0, ahead_ns: int = 0) -> None:
        self.clock = IterationClock(0)
        self.now_ns = ahead_ns
        self.sequence = 0
        self.told: list[IterationTime] = []
        self._lost = lost
        self._chance = random.Random(seed)

    def call(self, calls: Sequence[Call], lasts_s: float = 1.0) -> None:
        """So many calls, half of the time inside of them."""
        each_ns = round(lasts_s * 1e9) // len(calls)
        for operation, group, size in calls:
            self.sequence += 1
            call = CollectiveCall(
                rank=0,
                sequence=self.sequence,
                operation=operation,
                group=group,
                bytes=size,
                entered_ns=self.now_ns,
                exited_ns=self.now_ns + each_ns // 2,
            )
            self.now_ns += each_ns
            if self._chance.random() >= self._lost and (found := self.clock.observe(call)):
                self.told.append(found)

    def train(self, iterations: int, calls: Sequence[Call] = TRAINING, lasts_s: float = 1.0) -> None:
        for _ in range(iterations):
            self.call(calls, lasts_s)

    @property
    def last_s(self) -> list[float]:
        """Of the pattern that was followed last."""
        return [found.duration_s for found in self.told if found.pattern == self.told[-1].pattern]


@pytest.mark.parametrize("calls", [TRAINING, [("all_reduce", "dp", MiB)], SYNC], ids=["pipeline", "one call", "three"])
def test_the_time_of_an_iteration_is_known_after_three(calls: list[Call]) -> None:
    rank = Rank()
    rank.train(12, calls)
    assert rank.clock.period == len(calls)
    assert len(rank.last_s) >= min(8, 12 - 18 // len(calls))
    assert rank.last_s == pytest.approx([1.0] * len(rank.last_s), rel=1e-6)


def test_half_of_the_time_is_the_ranks_own_work() -> None:
    rank = Rank()
    rank.train(12)
    assert rank.told[-1].in_calls_s == pytest.approx(0.5, rel=1e-6)
    assert rank.told[-1].work_s == pytest.approx(0.5, rel=1e-6)


def test_a_slow_iteration_is_told_by_the_next_at_latest() -> None:
    rank = Rank()
    rank.train(10)
    before = len(rank.told)
    rank.train(1, lasts_s=3.0)
    rank.train(1)
    told = rank.told[before:]
    # A pattern may begin anywhere in an iteration: the two seconds more may lie in two of them.
    assert len(told) == 2
    assert sum(found.duration_s for found in told) == pytest.approx(4.0, abs=1e-6)


def test_what_is_called_before_training_is_left_behind() -> None:
    rank = Rank()
    rank.call(WARM_UP)
    rank.train(20)
    assert rank.clock.period == len(TRAINING)
    assert len(rank.last_s) >= 10


def test_an_iteration_of_many_micro_batches_is_one() -> None:
    """Their calls repeat 48 times as often: what comes once an iteration tells."""
    iteration = FORWARD * 48 + SYNC
    rank = Rank()
    rank.train(10, iteration)
    assert rank.clock.period == len(iteration)
    assert rank.last_s == pytest.approx([1.0] * len(rank.last_s), rel=1e-6)
    assert len(rank.last_s) >= 3


def test_layers_that_are_all_alike_are_no_iterations() -> None:
    """Fully sharded: every layer gathers as much, forward and back, and scatters as much."""
    layer = 8 * MiB
    iteration: list[Call] = [("all_gather", "dp", layer)] * 24
    iteration += [("all_gather", "dp", layer), ("reduce_scatter", "dp", layer)] * 24
    rank = Rank()
    rank.train(30, [*iteration, ("all_reduce", "dp", 4)])
    assert rank.clock.period == len(iteration) + 1
    assert rank.last_s[-10:] == pytest.approx([1.0] * 10, rel=1e-6)


def test_evaluation_interrupts_and_is_not_compared_with_training() -> None:
    rank = Rank()
    for _ in range(6):
        rank.train(20)
        rank.call(EVALUATION, 5.0)
    rank.train(20)
    assert rank.clock.period == len(TRAINING)
    training = [found for found in rank.told if found.pattern == rank.told[-1].pattern]
    assert [found.duration_s for found in training] == pytest.approx([1.0] * len(training), rel=1e-6)
    # One iteration is not told for each evaluation.
    assert len(training) >= 7 * 20 - 6 - 10


def test_a_call_now_and_then_costs_an_iteration_each_time() -> None:
    rank = Rank()
    for _ in range(10):
        rank.train(10)
        assert rank.clock.period == len(TRAINING)
        rank.call([("all_reduce", "world", 16)], 0.1)
    assert rank.last_s == pytest.approx([1.0] * len(rank.last_s), rel=1e-6)
    assert len(rank.last_s) >= 75


@pytest.mark.parametrize("lost", [0.005, 0.05])
def test_lost_records_cost_no_iteration(lost: float) -> None:
    rank = Rank(seed=7, lost=lost)
    rank.train(200)
    assert rank.clock.period == len(TRAINING)
    assert rank.last_s == pytest.approx([1.0] * len(rank.last_s), rel=1e-6)
    assert len(rank.last_s) >= 185


def test_a_record_that_comes_again_counts_once() -> None:
    clock = IterationClock(0)
    call = CollectiveCall(rank=0, sequence=5, operation="all_reduce", group="dp", bytes=MiB, entered_ns=1)
    for _ in range(50):
        assert clock.observe(call) is None
    assert clock.period is None


def test_sizes_that_change_with_every_batch_are_no_other_calls() -> None:
    chance = random.Random(3)
    rank = Rank()
    for _ in range(40):
        exchange: list[Call] = [("all_to_all", "ep", chance.randrange(MiB)) for _ in range(6)]
        rank.call([*exchange, ("all_reduce", "dp", 4 * MiB)])
    assert rank.clock.period == 7
    assert rank.last_s[-20:] == pytest.approx([1.0] * 20, rel=1e-6)


def test_a_clock_that_is_ahead_or_set_back_harms_nothing() -> None:
    rank = Rank(ahead_ns=10**18)
    rank.train(20)
    rank.now_ns -= 10**15
    rank.train(20)
    assert rank.last_s == pytest.approx([1.0] * len(rank.last_s), rel=1e-6)
    assert len(rank.last_s) >= 33


def test_another_batch_size_is_another_pattern() -> None:
    rank = Rank()
    rank.train(40)
    first = rank.told[-1].pattern
    rank.train(40, [(operation, group, 2 * size) for operation, group, size in TRAINING], lasts_s=2.0)
    assert rank.told[-1].pattern != first
    rank.train(40)
    assert rank.told[-1].pattern == first


def test_what_never_repeats_has_no_period_and_fills_no_memory() -> None:
    chance = random.Random(5)
    rank = Rank()
    rank.call([("all_reduce", str(chance.randrange(300)), 4) for _ in range(CALLS_MAX + 5000)])
    assert rank.clock.period is None
    assert rank.told == []
    assert len(rank.clock._collected) <= CALLS_MAX


def test_the_period_is_the_first_lag_that_repeats_every_kind_of_call() -> None:
    micro = [0, 0, 1]
    assert find_period(micro * 8) == 3
    assert find_period((micro * 30 + [2]) * 3) == 91
    assert find_period((micro * 30 + [2]) * 2) is None
    assert find_period(micro * 8, required=frozenset({2})) is None
    assert find_period([]) is None


def test_a_pattern_takes_from_earlier_periods_what_was_lost() -> None:
    assert pattern_of([0, 1, 2, 0, LOST, 2, LOST, LOST, 2], 3) == [0, 1, 2]


@pytest.mark.parametrize("buckets", [1, 2, 5])
def test_buckets_of_different_sizes_are_one_gradient(buckets: int) -> None:
    """With logging and checkpoints between, after a start of many broadcasts."""
    iteration: list[Call] = [("all_reduce", "dp", MiB * (1 + number)) for number in range(buckets)]
    rank = Rank()
    rank.call(WARM_UP)
    for number in range(1, 121):
        rank.train(1, iteration)
        if number % 10 == 0:
            rank.call([("all_reduce", "world", 16)], 0.01)
        if number % 30 == 0:
            rank.call([("barrier", "world", 0)], 2.0)
    rank.train(5, iteration)
    assert rank.clock.period == buckets
    assert rank.last_s == pytest.approx([1.0] * len(rank.last_s), rel=1e-6)
    assert len(rank.last_s) >= 60
