"""Some of the thousand jobs that `bench/fail_slow.py` looks at: who fails slow is told from who is only noisy."""

from __future__ import annotations

import pytest

from holdfast.engines.slow.change_points import ChangePoints
from tests.scenes.fail_slow_traces import Cause, Trace, trace

SEEDS = range(1, 7)
ITERATIONS = 2_000
FOUND_WITHIN = 100


def said(job: Trace) -> list[tuple[int, bool]]:
    """The iterations at which a change was found, and whether it was for the slower."""
    points = ChangePoints()
    return [
        (number, found.is_slower)
        for number, duration_s in zip(job.numbers, job.durations_s, strict=True)
        if (found := points.observe(duration_s))
    ]


@pytest.mark.parametrize("cause", ["computation", "communication"])
def test_slow_jobs_are_told_from_noisy_ones(cause: Cause) -> None:
    jobs = [trace(seed, cause, ITERATIONS) for seed in SEEDS]
    assert {job.is_slow for job in jobs} == {True, False}
    for job in jobs:
        found = said(job)
        assert bool(found) is job.is_slow, f"seed {job.seed}: {found}"
        for step in job.steps:
            within = range(step.index, step.index + step.ramp + FOUND_WITHIN)
            assert any(at in within and slower is step.is_slower for at, slower in found), f"seed {job.seed}: {step}"


def test_a_seed_is_one_trace() -> None:
    assert trace(3, "computation") == trace(3, "computation") != trace(4, "computation")
