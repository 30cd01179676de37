"""Inputs of decisions from the record: requests and passed time show in what was decided, the order in the inbox."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import pytest

from holdfast.events import (
    BreakerReset,
    CodeJudged,
    DeadlinePassed,
    Event,
    FailSlowLocated,
    GenerationStarted,
    IncidentOpened,
    JobStopping,
    JobSubmitted,
    Progress,
    Reattempt,
    SuspectsTested,
    UpdatePlanned,
    UpdateWithdrawn,
)
from holdfast.events.parts.job import JobSpec
from holdfast.ids import derived_id, named_id
from holdfast.node.rank_variables import RESTORE_STEP
from holdfast.requests import AnyRequest, ResetBreaker, RollbackJob, StopJob, SubmitJob, UpdateJob
from holdfast_controller.backtest.inputs import Seen, inputs_of

START = datetime(2026, 1, 1, tzinfo=UTC)
VERSION = "ab" * 32
SPEC = JobSpec(name="gpt", script="t.py", nnodes=1, nproc_per_node=1, cwd="/", directory="/jobs")
E = TypeVar("E", bound=Event)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def said(kind: type[E], seconds: float, cause: str | None = None, **fields: Any) -> E:
    id = derived_id(cause, kind.__name__) if cause else named_id(at(seconds), kind.__name__)
    common: dict[str, Any] = {"at": at(seconds), "source": "controller", "job": "gpt", "cause": cause}
    return kind(id=id, **common | fields)


def progress(seconds: float) -> Progress:
    return said(Progress, seconds, source="agent/a", node="a", generation=1, ranks=())


REQUEST = named_id(START, "request")
BY_A_PERSON: tuple[tuple[Event, AnyRequest], ...] = (
    (
        said(JobStopping, 5, REQUEST, reason="asked by ann"),
        StopJob(id=REQUEST, asked_by="ann", job="gpt"),
    ),
    (
        said(BreakerReset, 5, REQUEST, reason="asked by ann"),
        ResetBreaker(id=REQUEST, asked_by="ann", job="gpt"),
    ),
    (
        said(UpdateWithdrawn, 5, REQUEST, reason="asked by ann", version=VERSION),
        RollbackJob(id=REQUEST, asked_by="ann", job="gpt"),
    ),
    (
        said(CodeJudged, 5, REQUEST, reason="rolled back: asked by ann", version=VERSION, verdict="bad"),
        RollbackJob(id=REQUEST, asked_by="ann", job="gpt"),
    ),
)


@pytest.mark.parametrize(("decided", "request_"), BY_A_PERSON, ids=[event.type for event, _ in BY_A_PERSON])
def test_a_decision_that_names_who_asked_was_a_request(decided: Event, request_: AnyRequest) -> None:
    (found,) = inputs_of([], [decided])
    assert (found.request, found.event, found.decided) == (request_, None, (decided,))


def test_a_submission_has_the_code_and_the_step_of_its_first_generation() -> None:
    submitted = said(JobSubmitted, 0, REQUEST, reason="asked by ann", spec=SPEC)
    generation = {"reason": "start", "nodes": ("a",), "world_size": 1}
    first = said(GenerationStarted, 1, named_id(START, "grant"), restore_at_most=40, code_version=VERSION, **generation)
    request = inputs_of([], [submitted, first])[0].request
    assert isinstance(request, SubmitJob) and request.code and request.code.version == VERSION
    assert request.spec.env == {RESTORE_STEP: "40"}


def test_an_update_keeps_its_message_and_time_limit() -> None:
    planned = said(UpdatePlanned, 5, REQUEST, reason="asked by ann: new loss", version=VERSION, until=at(65))
    request = inputs_of([], [planned])[0].request
    assert isinstance(request, UpdateJob)
    assert (request.asked_by, request.code.message, request.within_s, request.is_urgent) == (
        "ann",
        "new loss",
        60,
        False,
    )


def test_a_decision_without_a_known_cause_followed_from_the_time() -> None:
    passed = said(DeadlinePassed, 60, awaited="ranks_started", waited_s=60.0)
    opened = said(IncidentOpened, 60, passed.id, reason="late", symptom="x", failed_step=1)
    (found,) = inputs_of([], [opened, passed])
    assert found.event is None and found.request is None and found.decided == (passed, opened)


def test_events_come_in_the_order_in_which_they_were_handled_and_decisions_with_their_cause() -> None:
    first, second = progress(1.0), progress(2.0)
    decided = said(Reattempt, 10.0, first.id, reason="again", attempt=1)
    # The second was handled first; the database's clock is a minute ahead of the controller's.
    inputs = inputs_of([Seen(first, at(70.0)), Seen(second, at(69.0))], [decided])
    assert [given.event for given in inputs] == [second, first]
    assert [given.at for given in inputs] == [at(9.0), at(10.0)]
    assert [given.decided for given in inputs] == [(), (decided,)]


def test_what_is_not_in_the_inbox_had_no_effect_as_far_back_as_the_inbox_goes() -> None:
    seen = [
        Seen(progress(1.0), None),
        Seen(progress(2.0), at(2.0)),
        Seen(progress(3.0), None),
        Seen(progress(4.0), at(4.0)),
    ]
    assert [given.had_effect for given in inputs_of(seen, [])] == [None, True, False, True]


def test_a_slow_node_is_replaced_later_than_it_was_named() -> None:
    slow = said(FailSlowLocated, 5, source="analyzer", asked=REQUEST, fault="compute", nodes=("a",), pace_s=2.0)
    replaced = said(IncidentOpened, 30, slow.id, reason="it has cost enough", symptom="mfu_decline", failed_step=1)
    named, passed = inputs_of([Seen(slow, at(5.1))], [replaced])
    assert (named.event, named.decided) == (slow, ()) and (passed.event, passed.decided) == (None, (replaced,))


def test_what_a_test_of_evicted_nodes_found_is_a_decision_of_another_job() -> None:
    found = said(SuspectsTested, 50, named_id(START, "result"), run="retest-1", cleared=("a",))
    assert inputs_of([], [found]) == []
