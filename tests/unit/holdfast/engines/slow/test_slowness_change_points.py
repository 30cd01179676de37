"""When iterations got slower or faster for good, and what only looks like it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest

from holdfast.engines.slow.change_points import CREEP_SAMPLES, ChangePoint, ChangePoints
from holdfast.engines.slow.run_lengths import RUNS_MAX, RunLengths

SEEDS = range(20)


def watch(durations_s: Sequence[float]) -> list[tuple[int, ChangePoint]]:
    """What is found, with the iteration that it was found at."""
    points = ChangePoints()
    return [(at, found) for at, duration_s in enumerate(durations_s) if (found := points.observe(duration_s))]


def noisy(seed: int, total: int, level: Callable[[int], float] = lambda at: 1.0, noise: float = 0.01) -> list[float]:
    chance = random.Random(seed)
    return [level(at) * chance.lognormvariate(0.0, noise) for at in range(total)]


def between(start: int, end: int, factor: float) -> Callable[[int], float]:
    return lambda at: factor if start <= at < end else 1.0


@pytest.mark.parametrize("factor", [1.2, 1.5, 3.0, 10.0])
def test_onset_and_relief_are_found_with_the_third_iteration(factor: float) -> None:
    for seed in SEEDS:
        found = watch(noisy(seed, 400, between(150, 300, factor)))
        assert [(at, change.index, change.is_slower) for at, change in found] == [(152, 150, True), (302, 300, False)]
        (_, onset), (_, relief) = found
        assert onset.before_s == pytest.approx(1.0, rel=0.02)
        assert onset.after_s == pytest.approx(factor, rel=0.03)
        assert relief.after_s == pytest.approx(1.0, rel=0.03)


def test_a_change_that_is_small_beside_the_noise_takes_longer() -> None:
    delays = []
    for seed in SEEDS:
        found = watch(noisy(seed, 500, between(200, 500, 1.2), noise=0.04))
        assert [change.is_slower for _, change in found] == [True]
        delays.append(found[0][0] - 199)
    assert sorted(delays)[len(SEEDS) // 2] <= 8
    assert max(delays) <= 2 * CREEP_SAMPLES


@pytest.mark.parametrize("noise", [0.005, 0.02, 0.06])
def test_noise_alone_is_no_change(noise: float) -> None:
    for seed in SEEDS:
        assert watch(noisy(seed, 1_500, noise=noise)) == []


def test_a_spike_of_one_or_two_iterations_is_jitter() -> None:
    for seed in SEEDS:
        chance = random.Random(seed)
        durations_s = noisy(seed, 1_000)
        for at in range(20, 990, 33):
            for number in range(chance.choice((1, 2))):
                durations_s[at + number] *= chance.uniform(1.2, 20.0)
        assert watch(durations_s) == []


def test_what_was_seen_to_last_two_iterations_has_to_last_four() -> None:
    durations_s = noisy(1, 400, between(300, 400, 1.5))
    durations_s[200] = durations_s[201] = 1.5
    assert [at for at, _ in watch(durations_s)] == [303]


def test_a_change_below_ten_percent_is_none() -> None:
    for seed in SEEDS:
        assert watch(noisy(seed, 500, between(200, 400, 1.07))) == []


def test_steps_below_ten_percent_add_up() -> None:
    """GREYHOUND §7.2 misses these."""
    for seed in SEEDS:
        found = watch(noisy(seed, 600, lambda at: 1.0 + 0.07 * min(2, max(0, (at - 100) // 150))))
        assert [change.is_slower for _, change in found] == [True]
        assert 400 <= found[0][0] < 400 + 2 * CREEP_SAMPLES


def test_what_creeps_is_found() -> None:
    found = watch(noisy(3, 1_000, lambda at: 1.0 + 0.0003 * at))
    assert found
    assert all(change.is_slower for _, change in found)


def test_several_changes_are_found_each() -> None:
    level = [1.0] * 150 + [1.3] * 100 + [1.8] * 100 + [1.3] * 100 + [1.0] * 100
    found = watch(noisy(2, len(level), lambda at: level[at]))
    assert [change.index for _, change in found] == [150, 250, 350, 450]
    assert [change.is_slower for _, change in found] == [True, True, False, False]


def test_the_first_iterations_say_nothing() -> None:
    assert watch([30.0, 12.0, 5.0, 1.6, *noisy(4, 200)]) == []


def test_an_iteration_that_cannot_be_is_refused() -> None:
    points = ChangePoints()
    for duration_s in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="positive number of seconds"):
            points.observe(duration_s)


def test_memory_is_bounded() -> None:
    runs = RunLengths()
    chance = random.Random(6)
    for at in range(3_000):
        runs.observe(at, chance.gauss(0.0, 0.3 if at % 50 < 3 else 0.01), 0.0, 0.01)
        assert len(runs.runs) <= RUNS_MAX
        assert sum(run.likely for run in runs.runs) == pytest.approx(1.0)


def test_without_outliers_a_spike_ends_a_run() -> None:
    """Which is what tells this from Adams & MacKay."""
    for outlier, ended in ((0.01, False), (0.0, True)):
        runs = RunLengths(outlier=outlier)
        for at, value in enumerate([0.0] * 50 + [1.0] + [0.0] * 20):
            runs.observe(at, value, 0.0, 0.01)
        assert (runs.likeliest().start > 0) is ended
