"""A machine on which a process is stuck in a hang: its rung, and the name of the incident."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from holdfast.events import FirstStep, HangFound, IncidentDiagnosed, IncidentOpened, RanksStarted
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


def test_a_hang_that_shows_its_reason_names_an_incident_that_a_hang_without_one_opened() -> None:
    job = FailingJob(("a", "b", "c"))
    job.train()
    fields: dict[str, Any] = {
        "job": "job",
        "step": 9,
        "phase": "",
        "sign": "waiting",
        "since": job.now,
        "still_s": 6.0,
        "limit_s": 3.0,
    }
    fields["trace"] = uuid7()
    job.send(
        HangFound, generation=job.state.generation, summary="no evidence shows which rank blocks the job", **fields
    )
    assert [(it.symptom, it.table_one) for it in job.of(IncidentOpened)] == [("hang", "job_hang")]
    generation = job.state.generation
    for node in job.state.nodes:
        job.send(RanksStarted, job="job", node=node, generation=generation, ranks=(), took_s=0.1)
        job.send(FirstStep, job="job", node=node, generation=generation, step=5, completed_at=job.now)
    stuck = {"nodes": ("b",), "ranks": (2,), "scope": "machine", "confidence": 0.9, "is_machine": True}
    reason = {"summary": "rank 2 waits for a file system", "symptom": "filesystem_mount"}
    job.send(HangFound, generation=generation, **fields, **stuck, **reason)
    (named,) = job.of(IncidentDiagnosed)
    assert (named.symptom, named.table_one, named.node) == ("filesystem_mount", "filesystem_mount", "b")
    assert named.root == "infrastructure"
