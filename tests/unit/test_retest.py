"""Nodes that were evicted together are tested beside training: who passes comes back, who is at fault is told."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import msgspec
import pytest

from holdfast.event_parts import Grant, JobSpec, RankException
from holdfast.events import (
    AnyEvent,
    DiagnosticResult,
    Event,
    Eviction,
    EvictionRevoked,
    JobFinished,
    NodeDeparted,
    NodeLost,
    NodesAwaited,
    NodesGranted,
    NodesReleased,
    NodesRequested,
    ProcessExited,
    RanksFinished,
    RanksStarted,
    SuspectsTested,
)
from holdfast.ids import derived_id, uuid7
from holdfast.policies import LadderPolicy
from holdfast.requests import StopJob
from holdfast.timeouts import Timeouts
from holdfast_controller.incident import Incident, Symptom
from holdfast_controller.plan import Planner
from holdfast_controller.retest import follow_up
from holdfast_controller.state import JobPhase, JobState

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SUSPECTS = ("a", "b", "c")
PLANNER = Planner(Timeouts(), LadderPolicy())
CAUSE = uuid7(unix_ms=1)
TRAINING = JobState(
    spec=JobSpec(name="job", script="t.py", cwd="/", directory="/jobs/job", nnodes=4, nproc_per_node=2),
    phase=JobPhase.CLAIMING,
    submitted_at=NOW,
    members=(None, None, None, Grant(node="d", epoch=1, address="10.0.0.4", store_ports=(29500,))),
    incident=Incident(id=CAUSE, opened_at=NOW, symptom=Symptom.NO_FIRST_STEP, failed_step=7, named="job_hang"),
)
GRANTS = tuple(Grant(node=node, epoch=5, address="10.0.0.1", store_ports=(29500,)) for node in SUSPECTS)
EXIT = {"rank": 0, "local_rank": 0, "step": -1, "steps_done": 0, "exited_at": NOW}
ERROR = RankException(type="KeyError", message="'b'", traceback="Traceback ...")

E = TypeVar("E", bound=Event)


def evictions(*nodes: str, together: tuple[str, ...] = ()) -> list[Event]:
    return [
        Eviction(
            id=derived_id(CAUSE, node),
            at=NOW,
            source="controller",
            job="job",
            incident=CAUSE,
            node=node,
            blocked_for_s=60.0,
            together=together,
            reason="one of them",
        )
        for node in nodes
    ]


class Run:
    """A run of tests, played event by event."""

    def __init__(self, *suspects: str, of: JobState = TRAINING) -> None:
        suspects = suspects or SUSPECTS
        outcome = follow_up(evictions(*suspects, together=suspects), of, NOW, PLANNER.timeouts)
        assert outcome is not None and outcome.state is not None
        self.state = outcome.state
        self.said: list[Event] = list(outcome.events)
        self.now = NOW

    def hear(self, kind: type[E], **fields: Any) -> None:
        self.now += timedelta(seconds=1)
        common = {"id": uuid7(), "at": self.now, "source": "test", "job": self.state.job}
        wanted = {"generation": self.state.generation, "claim": self.state.claim, "ranks": (), "took_s": 0.1, **fields}
        given = common | {name: value for name, value in wanted.items() if name in kind.__struct_fields__}
        event: AnyEvent = msgspec.convert({"type": kind(**given).type, **msgspec.to_builtins(given)}, kind)
        self._take(PLANNER.event(self.state, event, self.now))

    def wait(self) -> None:
        assert self.state.awaiting is not None
        self.now = self.state.awaiting.until
        self._take(PLANNER.time(self.state, self.now, NOW))

    def start(self, *nodes: str) -> None:
        grants = tuple(Grant(node=node, epoch=5, address="10.0.0.1", store_ports=(29500,)) for node in nodes)
        self.hear(NodesGranted, grants=grants)
        for node in nodes:
            self.hear(RanksStarted, node=node)

    def answer(self, node: str, status: str = "passed", detail: str = "") -> None:
        self.hear(DiagnosticResult, node=node, run="r", test="gemm", status=status, detail=detail)
        self.hear(DiagnosticResult, node=node, run="r", test="end", status="passed")
        self.hear(RanksFinished, node=node)

    def reach(self, rates: dict[str, float], links: dict[tuple[str, str], float]) -> None:
        """Every node of a run tells its speed, and what it reaches with others, and ends."""
        for node, rate in rates.items():
            speed = {"value": rate, "unit": "GFLOP/s", "hardware": "cpu"}
            self.hear(DiagnosticResult, node=node, run="r", test="speed", status="passed", **speed)
            for pair, reached in links.items():
                if node in pair:
                    (other,) = set(pair) - {node}
                    gathered = {"peers": (other,), "value": reached, "unit": "GB/s"}
                    self.hear(DiagnosticResult, node=node, run="r", test="all_gather", status="passed", **gathered)
            self.answer(node)

    def one(self, kind: type[E]) -> E:
        (only,) = (event for event in self.said if isinstance(event, kind))
        return only

    def revoked(self) -> dict[str | None, int]:
        return {event.node: event.epoch for event in self.said if isinstance(event, EvictionRevoked)}

    def _take(self, outcome: Any) -> None:
        self.state = outcome.state
        self.said += outcome.events


def test_they_are_asked_for_by_name_to_be_checked() -> None:
    run = Run()
    claim = run.one(NodesRequested)
    assert (claim.only, claim.count, claim.purpose) == (SUSPECTS, 3, "checks")
    assert run.state.spec.directory == f"/jobs/{run.state.job}"


@pytest.mark.parametrize("events", [evictions("a"), evictions("a", "b"), []])
def test_who_is_named_alone_is_not_tested_again(events: list[Event]) -> None:
    assert follow_up(events, TRAINING, NOW, PLANNER.timeouts) is None


def test_who_passes_comes_back_and_who_was_at_fault_is_told() -> None:
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


def test_one_that_dies_of_its_tests_stays_out() -> None:
    run = Run()
    run.start(*SUSPECTS)
    run.answer("a")
    run.hear(NodeLost, node="b", last_heard_at=run.now, silent_s=7.0, epoch=5)
    run.answer("c")
    assert [(it.node, it.reason) for it in run.one(SuspectsTested).at_fault] == [
        ("b", "nothing was heard of it for 7.0 s")
    ]
    assert run.revoked() == {"a": 5, "c": 5}


def test_those_that_are_not_there_do_not_keep_the_others_out() -> None:
    run = Run()
    run.hear(NodesAwaited, wanted=3, available=2, missing="b is lost", missing_nodes=("b",))
    run.wait()
    claim = [event for event in run.said if isinstance(event, NodesRequested)][-1]
    assert claim.only == ("a", "c")
    run.start("a", "c")
    run.answer("a")
    run.answer("c")
    assert run.revoked() == {"a": 5, "c": 5}
    # Nobody has asked it anything.
    assert (run.one(SuspectsTested).at_fault, run.one(SuspectsTested).in_doubt) == ((), ("b",))


def test_if_none_is_there_the_run_ends() -> None:
    run = Run()
    run.hear(NodesAwaited, wanted=3, available=0, missing="lost", missing_nodes=SUSPECTS)
    run.wait()
    assert run.state.phase is JobPhase.FAILED and not run.revoked()


def test_silence_is_no_health() -> None:
    run = Run()
    run.start(*SUSPECTS)
    run.answer("a")
    run.wait()
    assert run.revoked().keys() <= {"a"}
    assert not {"b", "c"} & set(run.one(SuspectsTested).cleared)


def test_a_run_that_a_person_stops_clears_nobody() -> None:
    run = Run()
    run.start(*SUSPECTS)
    run.answer("a")
    outcome = PLANNER.stop(run.state, StopJob(id=uuid7(), asked_by="ada", job=run.state.job), run.now)
    assert not any(isinstance(event, SuspectsTested | EvictionRevoked) for event in outcome.events)


def test_results_that_come_behind_the_end_of_their_ranks_count() -> None:
    run = Run()
    run.start(*SUSPECTS)
    run.answer("a")
    run.answer("b")
    run.hear(RanksFinished, node="c")
    run.hear(DiagnosticResult, node="c", run="r", test="gemm", status="passed")
    run.hear(DiagnosticResult, node="c", run="r", test="end", status="passed")
    assert run.one(SuspectsTested).cleared == SUSPECTS
    assert run.one(JobFinished).outcome == "completed"


def test_tests_that_fail_by_themselves_speak_against_nobody_and_are_over() -> None:
    run = Run()
    run.start(*SUSPECTS)
    run.hear(ProcessExited, **EXIT, node="b", exit_code=1, exception=ERROR)
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
    run.hear(ProcessExited, **EXIT, node="b", signal=9)
    assert [it.node for it in run.one(SuspectsTested).at_fault] == ["b"]
    assert run.one(JobFinished)


def test_those_that_are_missed_one_after_the_other_are_asked_nothing() -> None:
    run = Run()
    run.hear(NodesAwaited, wanted=3, available=2, missing="b is used", missing_nodes=("b",))
    run.wait()
    run.hear(NodesAwaited, wanted=2, available=1, missing="c is used", missing_nodes=("c",))
    run.wait()
    run.start("a")
    run.answer("a")
    found = run.one(SuspectsTested)
    assert (found.cleared, found.at_fault, found.in_doubt) == (("a",), (), ("b", "c"))


def test_one_that_was_missed_at_first_is_at_fault_if_it_dies_of_its_tests() -> None:
    run = Run()
    run.hear(NodesAwaited, wanted=3, available=2, missing="b is active", missing_nodes=("b",))
    run.start(*SUSPECTS)
    run.answer("a")
    run.hear(NodeLost, node="b", last_heard_at=run.now, silent_s=7.0, epoch=5)
    run.answer("c")
    assert [it.node for it in run.one(SuspectsTested).at_fault] == ["b"]


def test_one_whose_agent_was_shut_down_is_not_at_fault_for_that() -> None:
    run = Run()
    run.start(*SUSPECTS)
    run.answer("a")
    run.hear(NodeDeparted, node="b", instance=uuid7())
    run.answer("c")
    found = run.one(SuspectsTested)
    assert (found.at_fault, found.in_doubt) == ((), ("b",))


def test_a_loss_that_overtakes_its_grant_keeps_no_other_node() -> None:
    run = Run()
    run.hear(NodeLost, node="b", last_heard_at=run.now, silent_s=7.0, epoch=5)
    run.start(*SUSPECTS)
    assert run.state.nodes == ("a", "c")
    run.hear(NodesAwaited, wanted=1, available=0, missing="b is lost", missing_nodes=("b",))
    run.wait()
    run.hear(RanksStarted, node="a")
    run.hear(RanksStarted, node="c")
    run.answer("a")
    run.answer("c")
    assert run.revoked() == {"a": 5, "c": 5}


def test_one_that_is_lost_before_the_start_does_not_keep_the_others_for_ever() -> None:
    run = Run()
    run.hear(NodesGranted, grants=GRANTS)
    run.hear(RanksStarted, node="a")
    run.hear(RanksStarted, node="b")
    run.hear(NodeLost, node="c", last_heard_at=run.now, silent_s=7.0, epoch=5)
    run.wait()
    assert run.one(SuspectsTested)


@pytest.mark.parametrize(
    ("directory", "of_the_run"),
    [("/jobs/job", "/jobs/"), ("/jobs/job/", "/jobs/"), ("/", "/"), ("", "/"), ("s3://jobs/job", "s3://jobs/")],
)
def test_a_run_lies_beside_its_job_wherever_that_is(directory: str, of_the_run: str) -> None:
    job = TRAINING.update(spec=msgspec.structs.replace(TRAINING.spec, directory=directory))
    outcome = follow_up(evictions(*SUSPECTS, together=SUSPECTS), job, NOW, PLANNER.timeouts)
    assert outcome is not None and outcome.state is not None
    assert outcome.state.spec.directory == of_the_run + outcome.state.job


SLOWED = TRAINING.update(
    incident=Incident(id=CAUSE, opened_at=NOW, symptom=Symptom.SLOW, failed_step=7, named="mfu_decline")
)
QUARTET = [("a", "b"), ("a", "x"), ("a", "y"), ("b", "x"), ("b", "y"), ("x", "y")]


def test_who_was_slow_is_tested_beside_others_that_go_back_to_the_pool() -> None:
    run = Run("a", of=SLOWED)
    claim = run.one(NodesRequested)
    assert (claim.only, claim.count, claim.beside) == (("a",), 1, 2)
    run.start("a", "x", "y")
    assert run.state.nodes == ("a", "x", "y")
    run.reach({"a": 10.0, "x": 30.0, "y": 29.0}, {("a", "x"): 1.0, ("a", "y"): 1.1, ("x", "y"): 1.0})
    found = run.one(SuspectsTested)
    assert (found.cleared, [it.node for it in found.at_fault], found.in_doubt) == ((), ["a"], ())
    assert "it computes at 10 GFLOP/s, the others at 30" in found.reason
    assert not run.revoked()
    (released,) = (event for event in run.said if isinstance(event, NodesReleased))
    assert released.nodes == ("a", "x", "y")


def test_who_is_as_fast_as_others_comes_back() -> None:
    run = Run("a", of=SLOWED)
    run.start("a", "x", "y")
    run.reach({"a": 27.0, "x": 30.0, "y": 29.0}, {("a", "x"): 1.0, ("a", "y"): 0.6, ("x", "y"): 1.0})
    assert (run.one(SuspectsTested).cleared, run.revoked()) == (("a",), {"a": 5})


@pytest.mark.parametrize(
    ("slow", "cleared", "at_fault", "in_doubt"),
    [
        ([("a", "b")], (), [], ("a", "b")),
        ([("a", "b"), ("a", "x"), ("a", "y")], ("b",), ["a"], ()),
        ([], ("a", "b"), [], ()),
    ],
)
def test_of_both_ends_of_a_slow_link_the_one_at_fault_is_told(
    slow: list[tuple[str, str]], cleared: tuple[str, ...], at_fault: list[str], in_doubt: tuple[str, ...]
) -> None:
    run = Run("a", "b", of=SLOWED)
    run.start("a", "b", "x", "y")
    run.reach(dict.fromkeys("abxy", 30.0), {pair: 0.1 if pair in slow else 1.0 for pair in QUARTET})
    found = run.one(SuspectsTested)
    assert (found.cleared, [it.node for it in found.at_fault], found.in_doubt) == (cleared, at_fault, in_doubt)


def test_whom_nobody_is_beside_stays_out() -> None:
    run = Run("a", of=SLOWED)
    run.start("a")
    run.reach({"a": 30.0}, {})
    found = run.one(SuspectsTested)
    assert (found.cleared, found.in_doubt) == ((), ("a",)) and "nobody to compare with" in found.reason


def test_one_that_only_came_along_is_not_waited_for() -> None:
    run = Run("a", of=SLOWED)
    run.hear(NodeLost, node="x", last_heard_at=run.now, silent_s=7.0, epoch=5)
    run.start("a", "x", "y")
    assert (run.state.nodes, run.state.vacancies, run.state.phase) == (("a", "y"), 0, JobPhase.STARTING)
    run.hear(NodeLost, node="y", last_heard_at=run.now, silent_s=7.0, epoch=5)
    run.reach({"a": 30.0}, {})
    assert run.one(SuspectsTested).in_doubt == ("a",)
