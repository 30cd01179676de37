"""A node that its record convicts, and nothing can replace: the job goes on with it if it can."""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.engines.record.history import Mark, MarkKind, NodeRecord
from holdfast.events import ChecksStarted, Eviction, NodesRequested, Reattempt, Withheld
from holdfast_controller.plan.doubt.replacement import NO_REPLACEMENT
from tests.scenes.failing_job import FailingJob

NODES = tuple(f"n{number}" for number in range(8))


def convicted(*more: MarkKind) -> FailingJob:
    """Return a job with a node that has crashed so often that one more crash convicts it, though tests passed it."""
    job = FailingJob(NODES)
    record = NodeRecord(node="n7")
    for kind in (MarkKind.CRASH, MarkKind.CRASH, MarkKind.CHECKS_PASSED, MarkKind.CRASH, *more):
        mark = Mark(at=job.now, kind=kind, job="job", generation=-len(record.marks), nodes=len(NODES))
        record = record.with_mark(mark)
    job.controller.records["n7"] = record
    return job


def crash(job: FailingJob, step: int | None = None) -> None:
    job.exit("n7", rank=14, signal=11, step=job.state.step + 1 if step is None else step)


def test_a_convicted_node_stays_while_no_other_one_is_free_and_leaves_at_the_next_failure() -> None:
    job = convicted()
    crash(job)
    assert job.of(NodesRequested)[-1].trains_on and not job.of(Eviction), "a replacement is asked for first"
    job.answer(free="")
    assert not job.of(Eviction) and not job.of(ChecksStarted) and job.state.nodes == NODES
    assert job.of(Reattempt)[-1].node == "n7" and "chance of a lasting fault" in job.of(Reattempt)[-1].reason
    (withheld,) = job.of(Withheld)
    assert (withheld.mechanism, withheld.node) == (NO_REPLACEMENT, "n7")
    assert job.state.incident is not None and withheld.incident == job.state.incident.id
    job.train()
    crash(job)
    job.answer(free="spare")
    (eviction,) = job.of(Eviction)
    assert eviction.node == "n7" and "spare" in job.state.nodes


def test_it_leaves_though_none_is_free_if_the_job_fails_again_before_it_has_got_further() -> None:
    job = convicted()
    crash(job, step=40)
    job.answer(free="")
    assert not job.of(Eviction)
    crash(job, step=40)
    assert [event.node for event in job.of(Eviction)] == ["n7"]


def test_a_node_with_a_sure_fault_leaves_though_none_is_free() -> None:
    job = convicted(MarkKind.CHECKS_FAILED)
    crash(job)
    assert [event.node for event in job.of(Eviction)] == ["n7"]


def test_a_job_that_waits_for_a_node_does_not_ask_for_another_one_instead() -> None:
    job = convicted()
    job.controller.records["n1"] = replace(convicted(MarkKind.CHECKS_FAILED).controller.records["n7"], node="n1")
    job.exit("n1", rank=2, signal=11, step=40)
    assert job.state.vacancies == 1
    job.exit("n7", rank=14, signal=11, step=40)
    assert job.state.replacement is None and job.of(NodesRequested)[-1].count == job.state.vacancies == 2
    job.grant("e", "f")
    assert job.state.vacancies == 0 and {"e", "f"} <= set(job.state.nodes)


def test_a_convicted_node_leaves_for_the_only_free_one_though_its_test_would_have_no_witness() -> None:
    """Its rank names it as well, so a second node is asked for at first, as the witness of a test."""
    job = convicted()
    # Another node's rank has printed the like, so tests decide about either.
    mark = Mark(at=job.now, kind=MarkKind.HARDWARE, job="job", generation=-9, nodes=len(NODES))
    job.controller.records["n1"] = NodeRecord(node="n1").with_mark(replace(mark))
    job.print_ecc("n7", 14, free="spare")
    assert [event.node for event in job.of(Eviction)] == ["n7"] and "spare" in job.state.nodes
