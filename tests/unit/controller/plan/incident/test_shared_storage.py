"""Storage of other machines that fails the ranks of a job: no node is at fault, whichever reports it first."""

from __future__ import annotations

from datetime import timedelta

from holdfast.engines.checks.suites import END
from holdfast.events import ChecksStarted, DiagnosticResult, Eviction, NodesRequested
from holdfast.events.parts.ranks import RankException
from holdfast_controller.plan.phase import Checking, Stopping, Waiting
from tests.scenes.failing_job import FailingJob

PATH = "[Errno 5] Input/output error: '/shared/tokens.bin'"


def fail(job: FailingJob, *nodes: str, storage: str, trains: bool = True) -> None:
    """Let ranks of these nodes end one after the other, a spare node take each place that is to be filled, and the job
    run again."""
    error = RankException(type="OSError", message=PATH, traceback="t", storage=storage)
    generation, step = job.state.generation, job.state.step + 1
    for node in nodes:
        job.exit(node, generation, rank=2 * job.state.nodes.index(node), exit_code=1, exception=error, step=step)
    job.answer("spare")
    job.answer("spare")
    while isinstance(job.state.phase, Waiting):
        job.pass_time(600)
    if isinstance(job.state.phase, Checking):
        for test in ("mounts", END):
            for member in job.state.nodes:
                fields = {"run": "r", "test": test, "status": "passed"}
                job.send(DiagnosticResult, node=member, job="job", generation=job.state.generation, **fields)
    if trains:
        job.train()


def test_the_node_that_reports_an_error_of_shared_storage_first_stays() -> None:
    for nodes in (("a", "b"), ("a", "b", "c")):
        job = FailingJob(nodes)
        for _ in range(4):
            fail(job, "a", storage="file system fs-1:/export")
            job.now += timedelta(seconds=5)
        assert job.of(Eviction) == []
        assert len(job.of(NodesRequested)) == 1, "no other node is asked for"
        assert set(job.state.nodes) == set(nodes)
        assert not any(counts for _, counts in job.marks("a"))


def test_ranks_of_all_nodes_that_report_it_within_seconds_evict_none() -> None:
    job = FailingJob(("a", "b", "c"))
    for order in (("a", "b", "c"), ("b", "c", "a"), ("b", "a", "c"), ("b",)):
        fail(job, *order, storage="file system fs-1:/export")
    assert job.of(Eviction) == []


def test_a_disk_of_its_own_is_held_against_its_node() -> None:
    job = FailingJob(("a", "b"))
    for _ in range(2):
        fail(job, "a", storage="")
    assert [it.node for it in job.of(Eviction)] == ["a"]


def test_before_the_job_is_stopped_for_its_storage_its_machines_are_tested() -> None:
    job = FailingJob(("a", "b"))
    for _ in range(40):
        fail(job, "a", "b", storage="file system fs-1:/export", trains=False)
        if isinstance(job.state.phase, Stopping):
            break
    assert len(job.of(ChecksStarted)) == 1
    assert isinstance(job.state.phase, Stopping)
    assert "no machine and no code" in job.state.phase.ending.reason
    assert job.of(Eviction) == []


def test_a_node_that_alone_fails_on_it_is_tested_early_and_exchanged_before_the_job_would_end() -> None:
    """It may be cut off from the file system, which its own tests do not show; or its rank is the only one to write."""
    job = FailingJob(("a", "b"))
    for number in range(40):
        fail(job, "a", storage="file system fs-1:/export", trains=False)
        assert len(job.of(ChecksStarted)) == (number >= 3)
        if "a" not in job.state.nodes:
            break
    assert [it.node for it in job.of(Eviction)] == ["a"] and set(job.state.nodes) == {"b", "spare"}
    for _ in range(2):  # It is tested before the job is stopped.
        fail(job, "spare", storage="file system fs-1:/export", trains=False)
    assert isinstance(job.state.phase, Stopping) and len(job.of(Eviction)) == 1
