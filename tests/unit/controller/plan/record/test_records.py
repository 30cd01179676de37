"""Records of nodes: what the controller notes in them, keeps, and lets decide."""

from __future__ import annotations

import sys
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from holdfast.engines.record.history import MARKS_MAX, Mark, MarkKind, NodeRecord
from holdfast.events import Eviction, Inspection, NodeDeparted, NodeLost, NodeReleaseRequested, NodesRequested
from holdfast.events.parts.ranks import RankException
from holdfast.fresh_ids import uuid7
from holdfast.settings.retention import RetentionPolicy
from holdfast.symptoms import Symptom
from holdfast_controller.plan.doubt.doubt_records import GroupGuess
from holdfast_controller.plan.doubt.group_guesses import may_guess, refute
from holdfast_controller.plan.draft import JobDraft, Rules
from holdfast_controller.plan.evidence.rank_exits import EXITS_MAX
from holdfast_controller.plan.incident.incident import Failure, Incident
from holdfast_controller.plan.record.noting import note, note_cleared
from holdfast_controller.plan.record.record_upkeep import is_outdated
from holdfast_controller.service import Controller
from holdfast_controller.store import RECORDS, TABLES
from tests.scenes.failing_job import ECC, NOW, FailingJob


@pytest.mark.parametrize(
    ("end", "kind"),
    [
        ({"signal": 11}, MarkKind.CRASH),
        ({"signal": 9}, MarkKind.KILLED),
        ({"exit_code": 1, "exception": ECC}, MarkKind.HARDWARE),
    ],
)
def test_each_way_to_end_has_its_mark(end: dict[str, Any], kind: MarkKind) -> None:
    cluster = FailingJob()
    cluster.exit("b", **end)
    assert cluster.marks("b") == [(kind, True)]
    (mark,) = cluster.controller.records["b"].marks
    assert (mark.job, mark.generation, mark.nodes, mark.rack) == ("job", 1, 4, "r1") and mark.event


@pytest.mark.parametrize(
    "end",
    [
        {"exit_code": 1, "exception": RankException(type="ValueError", message="no", traceback="t")},
        {"exit_code": 1, "log_tail": "urllib.error.HTTPError: HTTP Error 503: Service Unavailable"},
        {"agent_was_away": True},
    ],
)
def test_what_is_no_machines_fault_is_not_noted(end: dict[str, Any]) -> None:
    cluster = FailingJob()
    cluster.exit("b", **end)
    assert cluster.controller.records == {}


def test_a_job_that_uses_up_the_memory_is_noted_and_does_not_count() -> None:
    cluster = FailingJob()
    lack = RankException(type="OSError", message="[Errno 12] Cannot allocate memory", traceback="t")
    cluster.exit("b", exit_code=1, exception=lack)
    assert all(not counts for _, counts in cluster.marks("b"))


def test_a_kill_that_the_kernels_line_explains_later_no_longer_counts() -> None:
    cluster = FailingJob()
    cluster.exit("b", signal=9)
    assert cluster.marks("b") == [(MarkKind.KILLED, True)]
    line = {"check": "kernel", "state": "alert", "confidence": "hint", "symptom": "cpu_oom", "is_momentary": True}
    cluster.send(Inspection, node="b", job="job", generation=1, device="python3[77]", **line)
    assert cluster.marks("b") == [(MarkKind.EXPLAINED, False)]


def test_silence_is_noted_and_does_not_count() -> None:
    cluster = FailingJob()
    cluster.send(NodeLost, node="b", job="job", epoch=1, last_heard_at=NOW, silent_s=11.0)
    assert cluster.marks("b") == [(MarkKind.LOST, False)]


def test_two_jobs_that_note_one_node_in_one_decision_both_do() -> None:
    cluster = FailingJob()
    cluster.submit("other", ("b", "e"))
    cluster.send(NodeDeparted, node="b", instance=uuid7())
    assert [mark.job for mark in cluster.controller.records["b"].marks] == ["job", "other"]


def test_a_generation_counts_once_and_by_its_best_evidence() -> None:
    cluster = FailingJob()
    cluster.exit("b", signal=11)
    cluster.exit("b", generation=1, signal=11, rank=1)
    assert cluster.marks("b") == [(MarkKind.CRASH, True)]
    cluster.exit("b", generation=1, rank=1, exit_code=1, exception=ECC)
    assert cluster.marks("b") == [(MarkKind.HARDWARE, True)]


def test_kills_on_several_nodes_at_once_count_against_none() -> None:
    cluster = FailingJob()
    for node in "abcd":
        cluster.exit(node, generation=1, signal=9)
    assert [cluster.marks(node) for node in "abcd"] == [[(MarkKind.KILLED, False)]] * 4


def test_of_several_crashes_the_first_counts() -> None:
    cluster = FailingJob()
    cluster.exit("b", generation=1, signal=11)
    cluster.exit("c", generation=1, signal=6)
    assert cluster.marks("b") == [(MarkKind.CRASH, True)] and cluster.marks("c") == [(MarkKind.CRASH, False)]
    cluster.exit("d", generation=1, exit_code=1, exception=ECC)
    assert cluster.marks("b") == [(MarkKind.CRASH, False)] and cluster.marks("d") == [(MarkKind.HARDWARE, True)]


def test_of_very_many_ends_in_one_generation_as_many_are_noted_as_are_kept() -> None:
    nodes = tuple(f"node-{number}" for number in range(3 * EXITS_MAX))
    cluster = FailingJob(nodes)
    for rank, node in enumerate(nodes):
        cluster.exit(node, generation=1, signal=11, rank=rank)
    assert len(cluster.controller.records) == EXITS_MAX
    assert [cluster.marks(node)[0] for node in nodes[:2]] == [(MarkKind.CRASH, True), (MarkKind.CRASH, False)]


def test_a_group_that_was_evicted_in_vain_is_cleared_once() -> None:
    cluster = FailingJob()
    state = cluster.controller.jobs["job"]
    incident = Incident(id=uuid7(), opened_at=NOW, symptom=Symptom.HANG, failed_step=5)
    guess = GroupGuess(incident=incident.id, generation=1, at=NOW, nodes={"y": 1, "z": 1}, places=frozenset({0, 1}))
    draft = JobDraft(state.update(generation=2, incident=incident, guesses=(guess,)), uuid7(), NOW, Rules())
    for node in guess.nodes:
        note(draft, node, MarkKind.EVICTED)
    refute(draft, Failure(symptom=Symptom.HANG, generation=2, step=5, text="it hangs again"))
    note_cleared(draft, "z", "it passed the tests that followed its eviction")
    kinds = [[mark.kind for mark in record.marks] for record in draft.records.values()]
    assert kinds == [[MarkKind.EVICTED, MarkKind.CLEARED]] * 2


def test_a_group_that_was_evicted_long_ago_is_no_wrong_guess_when_the_job_hangs_at_its_place() -> None:
    state, age = FailingJob().controller.jobs["job"], timedelta(seconds=Rules().timeouts.block_s)
    for since, is_judged in ((age - timedelta(seconds=1), True), (age, False)):
        guess = GroupGuess(incident="earlier", generation=1, at=NOW, nodes={"y": 1}, places=frozenset({0}))
        draft = JobDraft(state.update(generation=2, guesses=(guess,)), uuid7(), NOW + since, Rules())
        hang = Failure(symptom=Symptom.HANG, generation=2, step=5, text="it hangs again", group=draft.state.nodes[:1])
        refute(draft, hang)
        assert [it.is_refuted for it in draft.state.guesses] == [is_judged]
        assert may_guess(draft, hang) is not is_judged


def test_a_node_that_is_evicted_again_is_blocked_for_longer() -> None:
    cluster, day = FailingJob(), Rules().timeouts.block_s
    cluster.train()
    blocks = []
    for _ in range(4):
        alert = {"check": "gpu", "state": "alert", "confidence": "tolerate", "symptom": "gpu_memory_error"}
        cluster.send(Inspection, node="b", job="job", device="0000:3b:00", **alert)
        cluster.exit("b", rank=2, exit_code=1, exception=ECC, step=cluster.state.step + 1)
        blocks.append(cluster.of(Eviction)[-1].blocked_for_s)
        cluster.now += timedelta(days=3)
        cluster.grant("b")
        cluster.train()
    assert blocks == [day, 2 * day, 3 * day, 3 * day]
    assert len(cluster.of(Eviction)) == 4


def _lemon(at: datetime = NOW) -> NodeRecord:
    record = NodeRecord(node="z")
    for number in range(3):
        record = record.with_mark(Mark(at=at, kind=MarkKind.HARDWARE, job="old", generation=number, nodes=8))
    return msgspec.structs.replace(record, log_odds=3.0)


def test_a_claim_names_the_nodes_to_avoid() -> None:
    cluster = FailingJob()
    cluster.controller.records["z"] = _lemon()
    cluster.send(NodeLost, node="b", job="job", epoch=1, last_heard_at=NOW, silent_s=11.0)
    assert [event.avoid for event in cluster.events if isinstance(event, NodesRequested)] == [(), ("z",)]


def test_a_claim_avoids_a_rack_whose_nodes_fail_more_often_than_chance_has_it() -> None:
    cluster = FailingJob(tuple(f"n{number}" for number in range(8)))
    cluster.submit("large", tuple(f"m{number}" for number in range(48)), racks=16)
    for number in (0, 16, 32):
        cluster.exit(f"m{number}", job="large", rank=2 * number, signal=11)
        cluster.train(job="large")
    cluster.send(NodeLost, node="n1", job="job", epoch=1, last_heard_at=NOW, silent_s=11.0)
    asked = [event for event in cluster.events if isinstance(event, NodesRequested)][-1]
    assert asked.job == "job" and asked.avoid_racks == ("r0",) and "3 nodes of rack r0" in asked.why_avoided


def test_a_record_outlives_the_job_and_the_process() -> None:
    cluster = FailingJob()
    cluster.exit("b", signal=11)
    again = Controller(Rules())
    kept: dict[str, Any] = {table.name: {} for table in TABLES} | {RECORDS.name: dict(cluster.controller.records)}
    again.load(kept)
    assert again.records == cluster.controller.records and again.planner.rules.records is again.records


def test_a_release_by_a_person_is_noted_once() -> None:
    cluster = FailingJob()
    cluster.controller.records["z"] = _lemon()
    released = NodeReleaseRequested(id=uuid7(), at=NOW, source="standby", node="z", reason="released by ada")
    for _ in range(2):
        cluster.controller.adopt(cluster.controller.on_event(released, NOW))
    assert [kind for kind, _ in cluster.marks("z")] == [MarkKind.HARDWARE] * 3 + [MarkKind.RELEASED]
    assert RECORDS.columns(cluster.controller.records["z"])["chance"] == pytest.approx(0.2)


def test_to_look_for_outdated_records_costs_the_same_at_any_number_of_them() -> None:
    controller = Controller(Rules())
    controller.load({table.name: {} for table in TABLES} | {RECORDS.name: {str(it): _lemon() for it in range(500)}})
    looked_at = 0

    def count(frame: Any, what: str, _: Any) -> None:
        nonlocal looked_at
        looked_at += what == "call" and frame.f_code is is_outdated.__code__

    sys.setprofile(count)
    try:
        controller.on_time(NOW, NOW)
    finally:
        sys.setprofile(None)
    assert looked_at == 1


def test_records_are_bounded_and_deleted_in_time() -> None:
    record = NodeRecord(node="z")
    for number in range(MARKS_MAX + 5):
        record = record.with_mark(Mark(at=NOW, kind=MarkKind.CRASH, job="old", generation=number))
    assert len(record.marks) == MARKS_MAX and record.counts == {"crash": MARKS_MAX + 5}
    controller = Controller(Rules(), RetentionPolicy(node_records_days=2))
    controller.records["z"] = record
    assert controller.on_time(NOW + timedelta(days=1.9), NOW).is_nothing
    effect = controller.on_time(NOW + timedelta(days=2), NOW)
    controller.adopt(effect)
    assert [(row.table, row.key, row.row) for row in effect.rows] == [(RECORDS, "z", None)]
    assert controller.records == {}
