"""Two jobs with one directory: each would remove the other's steps."""

from __future__ import annotations

from datetime import UTC, datetime

from holdfast.events.parts.job import JobSpec
from holdfast.fresh_ids import uuid7
from holdfast.requests import Answer, StopJob, SubmitJob
from holdfast_controller.plan.draft import Rules
from holdfast_controller.service import Controller

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def submit(to: Controller, name: str, directory: str) -> Answer:
    spec = JobSpec(name=name, script="t.py", cwd="/", directory=directory)
    effect = to.on_request(SubmitJob(id=uuid7(), asked_by="ada", spec=spec), NOW)
    to.adopt(effect)
    return effect.answer


def test_a_job_may_not_have_the_directory_of_one_that_is_not_over() -> None:
    controller = Controller(Rules())
    assert submit(controller, "first", "/checkpoints/gpt").accepted
    refused = submit(controller, "second", "/checkpoints/gpt")
    assert not refused.accepted
    assert "job first is not over, and has its checkpoints in /checkpoints/gpt" in refused.message
    assert "--job-dir" in refused.message and "holdfast stop first" in refused.message
    assert submit(controller, "third", "/checkpoints/other").accepted


def test_the_next_job_goes_on_in_the_directory_of_one_that_is_over() -> None:
    controller = Controller(Rules())
    assert submit(controller, "first", "/checkpoints/gpt").accepted
    controller.adopt(controller.on_request(StopJob(id=uuid7(), asked_by="ada", job="first"), NOW))
    assert submit(controller, "second", "/checkpoints/gpt").accepted


def test_a_name_that_is_taken_is_the_reason_for_a_job_that_is_submitted_twice() -> None:
    controller = Controller(Rules())
    assert submit(controller, "first", "/checkpoints/gpt").accepted
    assert "a job named first exists already" in submit(controller, "first", "/checkpoints/gpt").message
