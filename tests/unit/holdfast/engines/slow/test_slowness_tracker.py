"""A job that gets slow, and fast again: said once, from the calls or the iterations of its ranks."""

from __future__ import annotations

import random

import pytest

from holdfast.engines.slow.calls import CollectiveCall, IterationTime
from holdfast.engines.slow.period import IterationClock
from holdfast.engines.slow.slow_findings import PaceChange
from holdfast.engines.slow.tracker import JobPace

RANKS = 4
HEALTHY = 60


class Job:
    """A job of several ranks, each with a clock of its own."""

    def __init__(self, seed: int = 1) -> None:
        self.pace = JobPace()
        self.said: list[tuple[int, PaceChange]] = []
        self.iteration = 0
        self._chance = random.Random(seed)

    def train(
        self, iterations: int, factor: float = 1.0, *, apart: dict[int, float] | None = None, pattern: int = 0
    ) -> None:
        """`apart`: factors of ranks that differ from the others."""
        for _ in range(iterations):
            self.iteration += 1
            noise = self._chance.lognormvariate(0.0, 0.005)
            for rank in range(RANKS):
                sample = IterationTime(
                    rank=rank,
                    iteration=self.iteration,
                    duration_s=noise * (apart or {}).get(rank, factor),
                    pattern=pattern,
                )
                self.said += [(self.iteration, found) for found in self.pace.observe(sample)]


def test_onset_and_relief_are_said_once_each() -> None:
    job = Job()
    job.train(HEALTHY)
    job.train(50, 1.4)
    assert job.pace.is_slow
    job.train(50)
    (onset_at, onset), (relief_at, relief) = job.said
    assert (onset.direction, onset.iteration, onset_at) == ("onset", HEALTHY + 1, HEALTHY + 3)
    assert (relief.direction, relief.iteration, relief_at) == ("relief", HEALTHY + 51, HEALTHY + 53)
    assert onset.detected_after == relief.detected_after == 3
    assert onset.after_s / onset.before_s == pytest.approx(1.4, rel=0.03)
    assert onset.healthy_s == pytest.approx(1.0, rel=0.02)
    assert len(onset.ranks) > RANKS / 2
    assert not onset.is_over and relief.is_over and not job.pace.is_slow


SHORT = (
    *(0.376, 0.453, 0.496, 0.432, 0.383, 0.377, 0.546, 0.442, 0.407, 0.448, 0.435, 0.489, 0.434, 0.477, 0.521, 0.44),
    *(0.358, 0.499, 0.562, 0.532, 0.545, 0.783, 0.782, 0.861, 0.792, 0.856, 0.841, 0.585, 0.626, 1.112, 1.877, 0.547),
    *(0.425, 0.428, 0.438, 0.393, 0.463, 0.496, 0.397, 0.463, 0.362, 0.526, 0.421, 0.449, 0.383, 0.515, 0.346, 0.476),
    *(0.469, 0.408, 0.394, 0.432, 0.46, 0.388, 0.411, 0.419, 0.433, 0.417, 0.401, 0.406, 0.427, 0.487, 0.488, 0.415),
    *(0.47, 0.396, 0.441, 0.415, 0.47, 0.478, 0.431, 0.488, 0.445, 0.495, 0.374),
)
"""Seconds of a job's iterations on a busy machine; from the 22nd on a node was slow, for nine iterations and a hold."""


def test_a_slowness_that_was_short_on_a_busy_machine_is_over_too() -> None:
    pace, found = JobPace(), list[PaceChange]()
    for iteration, duration_s in enumerate(SHORT, 1):
        for rank in range(3):
            sample = IterationTime(rank=rank, iteration=iteration, duration_s=duration_s, pattern=0)
            found += pace.observe(sample)
    onset, relief = found
    assert (onset.direction, relief.direction, relief.is_over) == ("onset", "relief", True)
    assert onset.iteration < relief.iteration and relief.after_s < relief.before_s and not pace.is_slow


def test_a_relief_by_half_is_not_the_end() -> None:
    job = Job()
    job.train(HEALTHY)
    job.train(50, 2.0)
    job.train(50, 1.4)
    job.train(50)
    assert [(found.direction, found.is_over) for _, found in job.said] == [
        ("onset", False),
        ("relief", False),
        ("relief", True),
    ]
    assert all(found.healthy_s == pytest.approx(1.0, rel=0.03) for _, found in job.said)


def test_what_gets_worse_is_said_again() -> None:
    job = Job()
    job.train(HEALTHY)
    job.train(50, 1.3)
    job.train(50, 1.8)
    assert [found.direction for _, found in job.said] == ["onset", "onset"]
    assert job.said[1][1].healthy_s == pytest.approx(1.0, rel=0.03)


def test_what_one_rank_alone_sees_is_its_clock() -> None:
    job = Job()
    job.train(HEALTHY)
    job.train(100, apart={2: 1.5})
    job.train(20)
    assert job.said == []


def test_a_job_that_was_slow_from_the_start_is_relieved() -> None:
    job = Job()
    job.train(HEALTHY, 1.3)
    job.train(50)
    assert [(found.direction, found.is_over) for _, found in job.said] == [("relief", True)]


def test_evaluation_is_no_onset() -> None:
    job = Job()
    for _ in range(6):
        job.train(60)
        job.train(30, 0.2, pattern=1)
    job.train(30)
    job.train(30, 1.5)
    assert [found.direction for _, found in job.said] == ["onset"]


@pytest.mark.parametrize("lost", [0.0, 0.02])
def test_from_calls_to_onset_and_relief(lost: float) -> None:
    """Ranks whose clocks are years apart, half of whose time is in collectives."""
    chance = random.Random(5)
    pace, clocks = JobPace(), [IterationClock(rank) for rank in range(2)]
    calls = [("all_reduce", "tp", 1 << 20)] * 12 + [("reduce_scatter", "dp", 1 << 24), ("all_gather", "dp", 1 << 24)]
    said: list[tuple[int, PaceChange]] = []
    now_ns = 0
    for iteration in range(160):
        factor = 1.5 if 80 <= iteration < 120 else 1.0
        each_ns = round(factor * 1e9 * chance.lognormvariate(0.0, 0.005)) // len(calls)
        for place, (operation, group, size) in enumerate(calls):
            for rank in range(2):
                if chance.random() < lost:
                    continue
                call = CollectiveCall(
                    rank=rank,
                    sequence=iteration * len(calls) + place,
                    operation=operation,
                    group=group,
                    bytes=size,
                    entered_ns=now_ns + rank * 10**17,
                    exited_ns=now_ns + rank * 10**17 + each_ns // 2,
                )
                if (sample := clocks[rank].observe(call)) is not None:
                    said += [(iteration, found) for found in pace.observe(sample)]
            now_ns += each_ns
    assert [found.direction for _, found in said] == ["onset", "relief"]
    # An iteration ends with a call of the next; counted from 0, and the first slow one is 80.
    assert said[0][0] <= 80 + 3
    assert said[1][0] <= 120 + 3
    assert said[0][1].after_s == pytest.approx(1.5, rel=0.03)
