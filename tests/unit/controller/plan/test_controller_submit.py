"""Events about a submitted job, and about its start."""

from datetime import UTC, datetime

import msgspec
import pytest

from holdfast.events import GenerationStarted, JobSubmitted, NodesGranted
from holdfast.events.parts.job import Grant, JobSpec
from holdfast.fresh_ids import uuid7
from holdfast.requests import SubmitJob
from holdfast_controller.plan.draft import JobDecision, Rules
from holdfast_controller.plan.planner import Planner

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SPEC = JobSpec(
    name="job-1",
    script="/train.py",
    nnodes=2,
    nproc_per_node=4,
    mesh="pp=2,tp=4",
    cwd="/",
    directory="/jobs/1",
    env={"TOKEN": "hunter2", "DEPTH": "3"},
    token="s3cret",
)
PLANNER = Planner(Rules())


def submitted() -> JobDecision:
    return PLANNER.request(None, SubmitJob(id=uuid7(), asked_by="ada", spec=SPEC), NOW)


def test_values_of_the_environment_and_the_token_reach_the_ranks_and_no_event() -> None:
    outcome = submitted()
    assert outcome.state is not None and outcome.state.spec == SPEC
    (emitted,) = [event for event in outcome.events if isinstance(event, JobSubmitted)]
    assert emitted.spec == msgspec.structs.replace(SPEC, env={"TOKEN": "***", "DEPTH": "***"}, token="***")
    for secret in (b"hunter2", b"s3cret"):
        assert not any(secret in msgspec.json.encode(event) for event in outcome.events)


def test_a_generation_reports_its_layout_and_its_vaults() -> None:
    waiting = submitted().state
    assert waiting is not None and waiting.claim is not None
    grants = (
        Grant(node="a", epoch=1, address="10.0.0.1", store_ports=(29500,), vault_port=7001, rack="r7"),
        Grant(node="b", epoch=1, address="10.0.0.2", store_ports=(29500,)),
    )
    granted = NodesGranted(id=uuid7(), at=NOW, source="standby", job="job-1", claim=waiting.claim, grants=grants)
    (started,) = [e for e in PLANNER.event(waiting, granted, NOW).events if isinstance(e, GenerationStarted)]
    assert started.nodes == ("a", "b")
    assert started.vaults == ("10.0.0.1:7001", "")
    assert started.racks == ("r7", "")
    assert (started.nproc_per_node, started.mesh, started.submitted_at) == (4, "pp=2,tp=4", NOW)


def test_a_job_whose_nodes_are_named_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="2 nodes are asked for, and 3 are named"):
        JobSpec(name="job", script="t.py", nnodes=2, only_nodes=("a", "b", "a"), cwd="/", directory="/jobs/job")
