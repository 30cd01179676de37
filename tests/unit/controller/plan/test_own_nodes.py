"""A node may name any job in what it publishes: the controller decides by that of the job's own nodes."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.daemon.jobs.job_nodes import GENERATIONS_KEPT
from holdfast.events import (
    CheckpointRestored,
    Event,
    FirstStep,
    KeepingSpaced,
    NodeLost,
    ProcessExited,
    Progress,
    RanksFinished,
    StepsKept,
    StepsNumbered,
)
from holdfast.events.parts.ranks import RankProgress
from holdfast_controller.plan.own_nodes import is_foreign
from tests.scenes.failing_job import ECC, NOW, FailingJob

FAR = 10**9
EXITED: dict[str, Any] = {"rank": 0, "local_rank": 0, "exit_code": 1, "exited_at": NOW, "exception": ECC, "step": FAR}
FORGED: list[tuple[type[Event], dict[str, Any]]] = [
    (Progress, {"ranks": (RankProgress(rank=0, step=FAR, phase="train"),)}),
    (StepsKept, {"step": FAR, "kept_for": "any_ranks"}),
    (KeepingSpaced, {"step": FAR, "every": 32}),
    (StepsNumbered, {"step": FAR}),
    (CheckpointRestored, {"step": 0, "tier": "nothing", "newest_step": FAR, "whole_step": FAR}),
    (FirstStep, {"step": FAR, "completed_at": NOW}),
    (ProcessExited, EXITED),
    (RanksFinished, {"ranks": (0, 1)}),
]


@pytest.fixture
def job() -> FailingJob:
    made = FailingJob(("a", "b", "c"))
    made.train()
    return made


@pytest.mark.parametrize(("kind", "fields"), FORGED, ids=lambda it: getattr(it, "__name__", ""))
def test_another_node_decides_nothing(job: FailingJob, kind: type[Event], fields: dict[str, Any]) -> None:
    for is_open in (False, True):
        if is_open:
            job.exit("a", exit_code=1)
            assert job.state.incident
        for generation in (1, job.state.generation):
            before, events = job.state, len(job.events)
            job.send(kind, node="z", job="job", generation=generation, **fields)
            assert (job.state, len(job.events)) == (before, events)


def test_a_node_that_has_left_is_heard_about_its_own_time(job: FailingJob) -> None:
    job.send(NodeLost, node="b", job="job", epoch=1, silent_s=5.0, last_heard_at=NOW)
    assert "b" not in job.state.nodes
    end = ProcessExited(id="", at=NOW, source="agent/b", node="b", job="job", generation=1, **EXITED)
    assert not is_foreign(job.state, end)
    job.grant("d")
    assert (job.state.generation, job.state.left) == (2, {"b": 1})
    late = ProcessExited(id="", at=NOW, source="agent/b", node="b", job="job", generation=2, **EXITED)
    assert not is_foreign(job.state, end)
    assert is_foreign(job.state, late)


def test_nodes_that_left_long_ago_are_forgotten(job: FailingJob) -> None:
    for generation in range(2, GENERATIONS_KEPT + 4):
        gone = job.state.nodes[0]
        job.send(NodeLost, node=gone, job="job", epoch=1, silent_s=5.0, last_heard_at=NOW)
        job.grant(f"n{generation}")
        job.train()
    assert len(job.state.left) == GENERATIONS_KEPT and "a" not in job.state.left
