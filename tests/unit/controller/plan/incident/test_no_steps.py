"""A job whose ranks make no steps, or some of them, is not restarted for that as long as they go on."""

from __future__ import annotations

from datetime import timedelta

import pytest

from holdfast.events import DeadlinePassed, FirstStep, IncidentClosed, Progress, RanksStarted
from holdfast.events.parts.ranks import RankProgress
from holdfast_controller.plan.phase import Running, Starting
from tests.scenes.failing_job import FailingJob

SERVER, WORKER = "a", "b"


def start(job: FailingJob) -> None:
    for node in job.state.nodes:
        job.send(RanksStarted, job="job", node=node, generation=job.state.generation, ranks=(), took_s=0.1)


def report(job: FailingJob, node: str, *, steps: int, collectives: int = 9, since_change_s: float = 0.1) -> None:
    rank = RankProgress(
        rank=0,
        step=steps - 1,
        steps_done=steps,
        phase="train",
        collectives=collectives,
        since_change_s=since_change_s,
    )
    job.send(Progress, job="job", node=node, generation=job.state.generation, ranks=(rank,))


def test_a_node_of_ranks_that_only_serve_others_runs_once_the_others_are_far_ahead() -> None:
    job = FailingJob((SERVER, WORKER))
    start(job)
    first = {"job": "job", "node": SERVER, "generation": 1, "step": 0, "completed_at": job.now}
    job.send(FirstStep, **first)
    report(job, WORKER, steps=0)
    assert isinstance(job.state.phase, Starting)
    report(job, SERVER, steps=20)
    # Calls of torch.distributed.rpc are no collectives.
    report(job, WORKER, steps=0, collectives=2, since_change_s=30)
    assert isinstance(job.state.phase, Running) and not job.state.phase.makes_no_steps


@pytest.mark.parametrize("is_stuck", [False, True])
def test_a_job_that_goes_on_without_steps_is_not_restarted_when_the_first_one_is_overdue(is_stuck: bool) -> None:
    """As an evaluation that the job was killed in."""
    job = FailingJob((SERVER, WORKER))
    start(job)
    job.train()
    job.exit(WORKER, signal=9, step=9)
    start(job)
    assert job.state.generation == 2 and isinstance(job.state.phase, Starting)
    assert job.state.phase.deadline is not None
    report(job, SERVER, steps=0)
    report(job, WORKER, steps=0)
    assert isinstance(job.state.phase, Starting), "this may be a long first step"
    job.pass_time((job.state.phase.deadline.until - job.now).total_seconds() - 10)
    for node in (SERVER, WORKER):
        report(job, node, steps=0, since_change_s=60 if is_stuck else 0)
    job.pass_time(60)
    assert len(job.of(DeadlinePassed)) == is_stuck
    if not is_stuck:
        assert isinstance(job.state.phase, Running) and job.state.phase.makes_no_steps
        report(job, SERVER, steps=0)
        job.pass_time(700)
        report(job, SERVER, steps=0)
        assert job.of(IncidentClosed)[0].outcome == "recovered"


def test_a_job_that_never_made_a_step_runs_again_soon_after_a_failure() -> None:
    job = FailingJob((SERVER, WORKER))
    start(job)
    job.exit(WORKER, signal=9, step=-1, steps_done=0)
    start(job)
    job.now += timedelta(seconds=10)
    report(job, SERVER, steps=0)
    report(job, WORKER, steps=0)
    assert isinstance(job.state.phase, Running) and job.state.phase.makes_no_steps
