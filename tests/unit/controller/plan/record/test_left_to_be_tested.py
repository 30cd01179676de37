"""A node that crashes twice: it is tested beside training if another one is free and it is likely broken; else all are
stopped."""

from __future__ import annotations

from datetime import timedelta

import pytest

from holdfast.engines.record.history import Mark, MarkKind, NodeRecord
from holdfast.events import ChecksStarted, Eviction, NodesAwaited, NodesRequested, Withheld
from holdfast_controller.plan.draft import Rules
from tests.scenes.failing_job import FailingJob

LARGE = tuple(f"n{number}" for number in range(32))


def crash_twice(nodes: tuple[str, ...] = LARGE, rules: Rules | None = None) -> FailingJob:
    job = FailingJob(nodes, rules)
    for hours in (0, 3):
        job.now += timedelta(hours=hours)
        job.exit("n7", rank=14, signal=11, step=job.state.step + 1)
        if not hours:
            job.train()
    return job


def test_it_leaves_and_is_tested_beside_training_once_another_one_is_granted() -> None:
    job = crash_twice()
    assert job.of(NodesRequested)[-1].count == 1 and not job.of(Eviction)
    job.grant("spare")
    (eviction,) = job.of(Eviction)
    assert (eviction.node, eviction.together) == ("n7", ("n7",)) and not job.of(ChecksStarted)
    assert "spare" in job.state.nodes and "n7" not in job.state.nodes
    retest = next(state for name, state in job.controller.jobs.items() if name != "job")
    assert retest.spec.only_nodes == ("n7",)


def test_other_ranks_that_end_while_the_pool_is_asked_do_not_start_the_job_with_it() -> None:
    job = crash_twice()
    job.exit("n3", rank=6, signal=6)
    job.grant("spare")
    assert [event.node for event in job.of(Eviction)] == ["n7"] and job.state.generation == 3


def test_all_nodes_are_stopped_for_tests_if_no_other_one_is_free() -> None:
    job = crash_twice()
    claim = job.of(NodesRequested)[-1]
    job.send(NodesAwaited, job="job", claim=claim.id, wanted=1, available=0, missing="no node is free")
    assert len(job.of(ChecksStarted)) == 1 and not job.of(Eviction)
    assert "n7 stays for now" in job.of(Withheld)[-1].reason


def test_a_job_of_eight_nodes_exchanges_it_too() -> None:
    """By its record it is more likely broken than not, and not so likely that it would go without a test."""
    job = crash_twice(LARGE[:8])
    job.grant("spare")
    assert [event.together for event in job.of(Eviction)] == [("n7",)] and not job.of(ChecksStarted)


def test_a_small_job_is_stopped_for_tests() -> None:
    """Of four nodes one crashes twice by chance too often."""
    job = crash_twice(LARGE[4:8])
    assert len(job.of(ChecksStarted)) == 1 and not job.of(Eviction)


def test_a_job_that_has_failed_before_in_the_incident_is_stopped_for_tests() -> None:
    job = FailingJob(LARGE[:8])
    for step in (1, 1):
        job.exit("n7", rank=14, signal=11, step=step)
    assert len(job.of(ChecksStarted)) == 1 and not job.of(Eviction)


@pytest.mark.parametrize(("nodes", "returns"), [(LARGE[:8], True), (LARGE, False)])
def test_a_node_that_tests_have_missed_stays_out_if_its_record_is_clear(nodes: tuple[str, ...], returns: bool) -> None:
    job = FailingJob(nodes)
    record = NodeRecord(node="n7")
    for kind in (MarkKind.CRASH, MarkKind.CRASH, MarkKind.CHECKS_PASSED):
        generation = -len(record.marks)
        record = record.with_mark(Mark(at=job.now, kind=kind, job="job", generation=generation, nodes=len(nodes)))
    job.controller.records["n7"] = record
    job.exit("n7", rank=14, signal=11)
    job.grant("spare")
    (eviction,) = job.of(Eviction)
    assert bool(eviction.together) is returns, "it is tested, and returns if it passes"
