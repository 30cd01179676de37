"""Malformed input: no input of a job stops the controller, or changes what it does not concern."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from holdfast.engines.checks.checks_program import PROGRAM
from holdfast.events import BadNumber, FirstStep, NodesGranted
from holdfast.events.parts.job import Grant, JobSpec
from holdfast.fresh_ids import uuid7
from holdfast.requests import SubmitJob
from holdfast_controller.plan.draft import Rules
from holdfast_controller.plan.job import JobState
from holdfast_controller.plan.planner import Planner

NOW = datetime(2026, 1, 1, tzinfo=UTC)
PLANNER = Planner(Rules())
SPEC = JobSpec(name="job", script="t.py", nnodes=2, cwd="/", directory="/jobs/job")


def event(event_type: Any, /, **fields: Any) -> Any:
    given = {"id": uuid7(), "at": NOW, "source": "test", "job": "job", "generation": 1, **fields}
    return msgspec.json.decode(msgspec.json.encode(event_type(**given)), type=event_type)


def started() -> JobState:
    state = PLANNER.request(None, SubmitJob(id=uuid7(), asked_by="ada", spec=SPEC), NOW).state
    assert state is not None
    grants = tuple(Grant(node=node, epoch=1, address=node, store_ports=(1,)) for node in "ab")
    return receive(state, event(NodesGranted, claim=state.claim, grants=grants))


def receive(state: JobState, *events: Any) -> JobState:
    for one in events:
        after = PLANNER.event(state, one, NOW).state
        assert after is not None
        state = after
    return state


@pytest.mark.parametrize("args", [("--suite", "bogus"), ("--limit-s", "soon"), ("--limit-s", "-1")])
def test_a_run_of_checks_that_cannot_be_timed_is_refused(args: tuple[str, ...]) -> None:
    spec = msgspec.structs.replace(SPEC, script=PROGRAM, is_module=True, args=args)
    outcome = PLANNER.request(None, SubmitJob(id=uuid7(), asked_by="eve", spec=spec), NOW)
    assert outcome.state is None and outcome.refusal


def test_a_jump_without_its_value_is_a_jump() -> None:
    state = receive(started(), *(event(FirstStep, node=node, step=0, completed_at=NOW) for node in "ab"))
    state = receive(state, event(BadNumber, step=3, quantity="loss", kind="jump", certified=1))
    assert state.incident is not None


def test_a_rank_that_the_job_does_not_have_is_on_no_node() -> None:
    state = receive(started(), event(BadNumber, step=3, quantity="loss", kind="nan", certified=1, rank=99))
    assert state.incident is not None
