"""What the controller says of a job that is asked for."""

from datetime import UTC, datetime

import msgspec

from holdfast.config import LadderPolicy
from holdfast.event_parts import JobSpec
from holdfast.events import JobSubmitted
from holdfast.ids import uuid7
from holdfast.requests import SubmitJob
from holdfast.timeouts import Timeouts
from holdfast_controller.plan import Planner

SPEC = JobSpec(name="job-1", script="/train.py", cwd="/", directory="/jobs/1", env={"TOKEN": "hunter2", "DEPTH": "3"})


def test_values_of_the_environment_reach_the_ranks_and_no_event() -> None:
    asked = SubmitJob(id=uuid7(), asked_by="ada", spec=SPEC)
    outcome = Planner(Timeouts(), LadderPolicy()).submit(None, asked, datetime(2026, 1, 1, tzinfo=UTC))
    assert outcome.state is not None and outcome.state.spec == SPEC
    (submitted,) = [event for event in outcome.events if isinstance(event, JobSubmitted)]
    assert submitted.spec == msgspec.structs.replace(SPEC, env={"TOKEN": "***", "DEPTH": "***"})
    assert not any(b"hunter2" in msgspec.json.encode(event) for event in outcome.events)
