"""A machine on which a process is stuck in a hang: its rung, and the name of the incident."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from holdfast.events import FirstStep, HangFound, IncidentDiagnosed, IncidentOpened, Inspection, RanksStarted
from holdfast.events.parts.ranks import RankException
from holdfast.fresh_ids import uuid7
from holdfast.settings.decisions.ladder import LadderPolicy
from holdfast.symptoms import Symptom
from holdfast_controller.plan.incident.incident import Failure, Incident, Rung
from holdfast_controller.plan.incident.ladder import choose
from holdfast_controller.plan.incident.rung_choice import LadderOptions, RungChoice
from tests.scenes.failing_job import FailingJob

NODES = frozenset("abc")


def chosen(checked: frozenset[str]) -> RungChoice:
    incident = Incident(
        id="i", opened_at=datetime(2026, 1, 1, tzinfo=UTC), symptom=Symptom.HANG, failed_step=7, checked=checked
    )
    failure = Failure(symptom=Symptom.HANG, generation=1, step=7, text="stuck", node="b", suspects=("b",))
    return choose(incident, failure, LadderOptions(members=NODES, may_exchange=True), LadderPolicy())


def test_it_leaves_once_another_one_is_there() -> None:
    choice = chosen(frozenset())
    assert (choice.rung, choice.nodes, choice.asks_first) == (Rung.EVICT, ("b",), True)


def test_no_node_is_asked_for_while_tests_of_all_are_concluded() -> None:
    assert not chosen(NODES).asks_first


def hang(job: FailingJob, **fields: Any) -> None:
    """Report a hang of the newest generation, which has started before."""
    generation = job.state.generation
    for node in job.state.nodes:
        job.send(RanksStarted, job="job", node=node, generation=generation, ranks=(), took_s=0.1)
        job.send(FirstStep, job="job", node=node, generation=generation, step=5, completed_at=job.now)
    usual = {"step": 9, "phase": "", "sign": "waiting", "since": job.now, "still_s": 6.0, "limit_s": 3.0}
    job.send(HangFound, job="job", generation=generation, trace=uuid7(), **(usual | fields))


WITHOUT_REASON = {"summary": "no evidence shows which rank blocks the job"}
STUCK = {"nodes": ("b",), "ranks": (2,), "scope": "machine", "confidence": 0.9, "is_machine": True}
FILE_SYSTEM = STUCK | {"summary": "rank 2 waits for a file system", "symptom": "filesystem_mount"}


def hung_job() -> FailingJob:
    """Return a job whose incident a hang without a reason opened."""
    job = FailingJob(("a", "b", "c"))
    job.train()
    hang(job, **WITHOUT_REASON)
    assert [(it.symptom, it.table_one) for it in job.of(IncidentOpened)] == [("hang", "job_hang")]
    return job


def test_a_hang_that_shows_its_reason_names_an_incident_that_a_hang_without_one_opened() -> None:
    job = hung_job()
    hang(job, **FILE_SYSTEM)
    (named,) = job.of(IncidentDiagnosed)
    assert (named.symptom, named.table_one, named.node) == ("filesystem_mount", "filesystem_mount", "b")
    assert named.root == "infrastructure"


def test_an_alert_about_the_node_of_a_later_hang_does_not_name_the_incident() -> None:
    job = hung_job()
    hint = {"check": "mounts", "state": "alert", "confidence": "hint", "symptom": "filesystem_mount"}
    job.send(Inspection, node="b", detail="/data answers slowly", **hint)
    hang(job, **STUCK, summary="rank 2 waits")
    assert job.of(IncidentDiagnosed) == []
    assert job.state.incident is not None
    assert job.state.incident.symptom_name == "hang"


def test_a_hang_after_an_error_of_the_script_does_not_rename_the_incident() -> None:
    job = hung_job()
    error = RankException(type="ValueError", message="wrong shape", traceback="train.py")
    job.exit("a", exit_code=1, exception=error, step=6)
    known = [it.symptom for it in job.of(IncidentDiagnosed)]
    assert known == ["user_code_error"]
    hang(job, **FILE_SYSTEM)
    assert [it.symptom for it in job.of(IncidentDiagnosed)] == known
