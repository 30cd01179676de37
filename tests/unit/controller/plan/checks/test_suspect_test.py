"""Nodes that were evicted together are tested beside training: those that pass come back."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.events import (
    DiagnosticResult,
    Event,
    EvictionRevoked,
    JobFinished,
    NodeDeparted,
    NodeLost,
    NodesAwaited,
    NodesGranted,
    NodesRequested,
    ProcessExited,
    RanksFinished,
    RanksStarted,
    SuspectsTested,
)
from holdfast.fresh_ids import uuid7
from holdfast.requests import StopJob
from holdfast_controller.plan.checks.suspect_test import follow_up
from tests.scenes.suspect_test import CAUSE, ERROR, EXIT, GRANTS, NOW, PLANNER, SUSPECTS, TRAINING, Run, evictions


def test_suspects_are_requested_by_name() -> None:
    run = Run()
    claim = run.one(NodesRequested)
    assert (claim.only, claim.count, claim.purpose) == (SUSPECTS, 3, "checks")
    assert run.state.spec.directory == f"/jobs/{run.state.job}"


@pytest.mark.parametrize("events", [evictions("a"), evictions("a", "b"), []])
def test_a_node_that_is_evicted_alone_is_not_tested(events: list[Event]) -> None:
    assert follow_up(events, TRAINING, NOW, PLANNER.rules) is None


def test_nodes_that_pass_come_back_and_the_one_at_fault_is_named() -> None:
    run = Run()
    run.start(*SUSPECTS)
    run.answer("a")
    run.answer("b", "failed", "iteration 7 differs from the first")
    assert not run.revoked()
    run.answer("c")
    found = run.one(SuspectsTested)
    assert (found.job, found.incident, found.run) == ("job", CAUSE, run.state.job)
    assert (found.cleared, found.in_doubt) == (("a", "c"), ())
    assert [suspect.node for suspect in found.at_fault] == ["b"] and "iteration 7" in found.reason
    # By the hand-over to the tests: that of their eviction is over.
    assert run.revoked() == {"a": 5, "c": 5}
    assert run.one(JobFinished).job == run.state.job


def test_a_suspect_that_dies_of_its_tests_stays_blocked() -> None:
    run = Run()
    run.start(*SUSPECTS)
    run.answer("a")
    run.receive(NodeLost, node="b", last_heard_at=run.now, silent_s=7.0, epoch=5)
    run.answer("c")
    assert [(it.node, it.reason) for it in run.one(SuspectsTested).at_fault] == [
        ("b", "no heartbeat from it for 7.0 s")
    ]
    assert run.revoked() == {"a": 5, "c": 5}


def test_missing_suspects_do_not_keep_the_others_blocked() -> None:
    run = Run()
    run.receive(NodesAwaited, wanted=3, available=2, missing="b is lost", missing_nodes=("b",))
    run.wait()
    claim = [event for event in run.emitted if isinstance(event, NodesRequested)][-1]
    assert claim.only == ("a", "c")
    run.start("a", "c")
    run.answer("a")
    run.answer("c")
    assert run.revoked() == {"a": 5, "c": 5}
    # It was asked nothing.
    assert (run.one(SuspectsTested).at_fault, run.one(SuspectsTested).in_doubt) == ((), ("b",))


def test_without_any_suspect_the_run_ends() -> None:
    run = Run()
    run.receive(NodesAwaited, wanted=3, available=0, missing="lost", missing_nodes=SUSPECTS)
    run.wait()
    assert run.state.phase_name == "failed" and not run.revoked()


def test_a_silent_suspect_is_not_cleared() -> None:
    run = Run()
    run.start(*SUSPECTS)
    run.answer("a")
    run.wait()
    assert run.revoked().keys() <= {"a"}
    assert not {"b", "c"} & set(run.one(SuspectsTested).cleared)


def test_a_run_that_a_person_stops_clears_no_node() -> None:
    run = Run()
    run.start(*SUSPECTS)
    run.answer("a")
    outcome = PLANNER.request(run.state, StopJob(id=uuid7(), asked_by="ada", job=run.state.job), run.now)
    assert not any(isinstance(event, SuspectsTested | EvictionRevoked) for event in outcome.events)


def test_results_that_arrive_after_the_end_of_their_ranks_count() -> None:
    run = Run()
    run.start(*SUSPECTS)
    run.answer("a")
    run.answer("b")
    run.receive(RanksFinished, node="c")
    run.receive(DiagnosticResult, node="c", run="r", test="gemm", status="passed")
    run.receive(DiagnosticResult, node="c", run="r", test="end", status="passed")
    assert run.one(SuspectsTested).cleared == SUSPECTS
    assert run.one(JobFinished).outcome == "completed"


def test_tests_with_an_error_of_their_own_accuse_no_node_and_end() -> None:
    run = Run()
    run.start(*SUSPECTS)
    run.receive(ProcessExited, **EXIT, node="b", exit_code=1, exception=ERROR)
    run.answer("a")
    run.answer("c")
    found = run.one(SuspectsTested)
    assert (found.cleared, found.at_fault, found.in_doubt) == (("a", "c"), (), ("b",))
    assert run.one(JobFinished)


def test_the_end_of_a_process_is_the_end_of_its_tests() -> None:
    run = Run()
    run.start(*SUSPECTS)
    run.answer("a")
    run.answer("c")
    run.receive(ProcessExited, **EXIT, node="b", signal=9)
    assert [it.node for it in run.one(SuspectsTested).at_fault] == ["b"]
    assert run.one(JobFinished)


def test_suspects_that_are_missing_one_after_the_other_are_not_tested() -> None:
    run = Run()
    run.receive(NodesAwaited, wanted=3, available=2, missing="b is used", missing_nodes=("b",))
    run.wait()
    run.receive(NodesAwaited, wanted=2, available=1, missing="c is used", missing_nodes=("c",))
    run.wait()
    run.start("a")
    run.answer("a")
    found = run.one(SuspectsTested)
    assert (found.cleared, found.at_fault, found.in_doubt) == (("a",), (), ("b", "c"))


def test_a_suspect_that_joins_late_is_at_fault_if_it_dies_of_its_tests() -> None:
    run = Run()
    run.receive(NodesAwaited, wanted=3, available=2, missing="b is active", missing_nodes=("b",))
    run.start(*SUSPECTS)
    run.answer("a")
    run.receive(NodeLost, node="b", last_heard_at=run.now, silent_s=7.0, epoch=5)
    run.answer("c")
    assert [it.node for it in run.one(SuspectsTested).at_fault] == ["b"]


def test_a_suspect_whose_agent_was_shut_down_is_not_at_fault_for_that() -> None:
    run = Run()
    run.start(*SUSPECTS)
    run.answer("a")
    run.receive(NodeDeparted, node="b", instance=uuid7())
    run.answer("c")
    found = run.one(SuspectsTested)
    assert (found.at_fault, found.in_doubt) == ((), ("b",))


def test_a_loss_that_overtakes_its_grant_holds_up_no_other_node() -> None:
    run = Run()
    run.receive(NodeLost, node="b", last_heard_at=run.now, silent_s=7.0, epoch=5)
    run.start(*SUSPECTS)
    assert run.state.nodes == ("a", "c")
    run.receive(NodesAwaited, wanted=1, available=0, missing="b is lost", missing_nodes=("b",))
    run.wait()
    run.receive(RanksStarted, node="a")
    run.receive(RanksStarted, node="c")
    run.answer("a")
    run.answer("c")
    assert run.revoked() == {"a": 5, "c": 5}


def test_a_suspect_that_is_lost_before_the_start_does_not_hold_up_the_others() -> None:
    run = Run()
    run.receive(NodesGranted, grants=GRANTS)
    run.receive(RanksStarted, node="a")
    run.receive(RanksStarted, node="b")
    run.receive(NodeLost, node="c", last_heard_at=run.now, silent_s=7.0, epoch=5)
    run.wait()
    assert run.one(SuspectsTested)


@pytest.mark.parametrize(
    ("directory", "of_the_run"),
    [("/jobs/job", "/jobs/"), ("/jobs/job/", "/jobs/"), ("/", "/"), ("", "/"), ("s3://jobs/job", "s3://jobs/")],
)
def test_the_directory_of_a_run_is_beside_that_of_its_job(directory: str, of_the_run: str) -> None:
    job = TRAINING.update(spec=msgspec.structs.replace(TRAINING.spec, directory=directory))
    outcome = follow_up(evictions(*SUSPECTS, together=SUSPECTS), job, NOW, PLANNER.rules)
    assert outcome is not None and outcome.state is not None
    assert outcome.state.spec.directory == of_the_run + outcome.state.job
