"""A machine that makes its job slow is replaced once it has cost as much as a restart, and not before."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from holdfast.engines.record.history import Mark, MarkKind, NodeRecord
from holdfast.events import (
    DeadlinePassed,
    Eviction,
    FailSlowRelieved,
    IncidentOpened,
    Withheld,
)
from holdfast.fresh_ids import uuid7
from holdfast.settings.decisions.ladder import LadderPolicy
from holdfast.settings.mechanisms import MechanismPolicy
from holdfast.symptoms import Symptom
from holdfast_controller.plan.draft import JobDraft, Rules
from holdfast_controller.plan.incident.incident import Incident
from holdfast_controller.plan.phase import Awaited, Deadline, Ending, JobOutcome, Starting, Stopping
from holdfast_controller.plan.transitions import become_running
from tests.scenes.slowed_job import NOW, Scene, located, onset

ENDING = Ending(outcome=JobOutcome.STOPPED, reason="asked", exit_code=143)


def incident() -> Incident:
    """One that is open until the job is past step 120."""
    return Incident(id=uuid7(), opened_at=NOW, symptom=Symptom.KILLED_BY_SIGNAL, failed_step=120)


def relieved(*, is_over: bool) -> FailSlowRelieved:
    return FailSlowRelieved(
        id=uuid7(),
        at=NOW,
        source="analyzer",
        job="job",
        generation=2,
        before_s=2.0,
        after_s=1.0,
        healthy_s=1.0,
        iteration=50,
        detected_after=2,
        is_over=is_over,
    )


def test_a_slow_machine_is_replaced_once_it_has_cost_as_much_as_a_restart() -> None:
    scene = Scene()
    assert not scene.receive(located()).events
    # Half of the time is lost: a minute's worth takes two.
    assert scene.at(119).is_nothing
    events = scene.replaced_at(120)
    (opened,) = (event for event in events if isinstance(event, IncidentOpened))
    (eviction,) = (event for event in events if isinstance(event, Eviction))
    assert (opened.symptom, opened.root, opened.node) == ("mfu_decline", "infrastructure", "node-1")
    assert (eviction.node, eviction.together) == ("node-1", ("node-1",))
    assert "an iteration takes 2 s instead of 1 s; rank 1 computes slowly; in 120 s" in eviction.reason
    assert scene.controller.jobs["job"].slow is None


@pytest.mark.parametrize(
    ("ladder", "is_tested", "due_s"),
    [
        # Half of the time is lost, and a restart costs 60 s. Relief that is on its way is awaited.
        (LadderPolicy(slow_cost_max_s=60), True, 10),
        (LadderPolicy(slow_cost_max_s=60), False, 120),
        (LadderPolicy(slow_cost_max_s=60, slow_lasts_s=121), True, 10),
        (LadderPolicy(slow_cost_max_s=60, slow_lasts_s=120), True, 120),
    ],
)
def test_a_machine_that_tests_named_goes_at_once_where_a_restart_costs_less_than_slowness_on_average(
    ladder: LadderPolicy, is_tested: bool, due_s: int
) -> None:
    scene = Scene(ladder=ladder)
    named = located() if is_tested else located(is_validated=False, nodes=(), one_of=("node-1",), confidence=0.9)
    assert not scene.receive(named).events
    assert scene.at(due_s - 1).is_nothing
    (eviction,) = (event for event in scene.replaced_at(due_s) if isinstance(event, Eviction))
    why = f"slowness lasts {ladder.slow_lasts_s:.0f} s on average" if due_s == 10 else "in 120 s this has cost 60 s"
    assert why in eviction.reason


@pytest.mark.parametrize(
    ("known", "restart_s"),
    [
        # The limit of the settings, 60 s, holds for what the start shows, and not for what a restart showed.
        ({}, 60),
        ({"start_s": 20.0}, 20),
        ({"start_s": 600.0}, 60),
        ({"start_s": 20.0, "restart_s": 5.0}, 5),
        ({"start_s": 20.0, "restart_s": 90.0}, 90),
    ],
)
def test_a_restart_costs_what_the_last_one_took_and_before_it_what_the_start_took(
    known: dict[str, float], restart_s: int
) -> None:
    scene = Scene()
    scene.controller.jobs["job"] = scene.controller.jobs["job"].update(**known)
    scene.receive(located())
    assert scene.at(2 * restart_s - 1).is_nothing
    (eviction,) = (event for event in scene.replaced_at(2 * restart_s) if isinstance(event, Eviction))
    assert f"more than a restart: {restart_s} s" in eviction.reason


@pytest.mark.parametrize("has_run", [False, True])
def test_a_clock_that_is_set_back_makes_no_restart_cheaper_than_nothing(has_run: bool) -> None:
    starting = Starting(ordered_at=NOW + timedelta(hours=1), deadline=None)
    state = msgspec.structs.replace(Scene().controller.jobs["job"], phase=starting, has_run=has_run)
    draft = JobDraft(state, uuid7(), NOW, Rules())
    become_running(draft, starting)
    assert draft.state.restart_s == (0.0 if has_run else None)
    assert draft.state.start_s == (None if has_run else 0.0)


@pytest.mark.parametrize(
    ("changes", "symptom"),
    [
        ({}, Symptom.CPU_OVERLOAD),
        ({"symptom": Symptom.GPU_MEMORY_ERROR, "confidence": "hint"}, Symptom.GPU_MEMORY_ERROR),
        ({"node": "node-0"}, Symptom.MFU_DECLINE),
        ({"symptom": Symptom.CPU_OOM}, Symptom.MFU_DECLINE),
    ],
)
def test_what_an_inspection_found_on_a_slow_machine_names_its_incident(
    changes: dict[str, Any], symptom: Symptom
) -> None:
    scene = Scene()
    scene.receive(located())
    scene.reported(100, **changes)
    opened = next(event for event in scene.replaced_at(121) if isinstance(event, IncidentOpened))
    assert (opened.symptom, opened.table_one, opened.root) == (symptom, symptom.row, "infrastructure")
    assert ("not the job's" in opened.reason) == (symptom is not Symptom.MFU_DECLINE)


def test_a_job_that_cannot_resume_is_told_once() -> None:
    scene = Scene(can_resume=False)
    scene.receive(located())
    (withheld,) = scene.at(120).events
    assert isinstance(withheld, Withheld)
    assert (withheld.mechanism, withheld.node) == ("no_way_to_resume", "node-1")
    assert "a restart would begin from scratch" in withheld.reason
    assert scene.at(10_000).is_nothing


def test_in_observe_mode_the_eviction_is_only_reported() -> None:
    scene = Scene(MechanismPolicy(fail_slow="observe"))
    scene.receive(located())
    (withheld,) = scene.at(120).events
    assert isinstance(withheld, Withheld)
    assert (withheld.mechanism, withheld.rung, withheld.node) == ("fail_slow", "evict", "node-1")
    assert scene.at(300).is_nothing


@pytest.mark.parametrize(
    "changes",
    [
        {"is_validated": False},
        {"nodes": ()},
        {"nodes": ("node-0", "node-1")},
        {"nodes": (), "links": (("node-0", "node-1"), ("node-1", "node-2"))},
        {"nodes": (), "one_of": ("node-0", "node-1"), "confidence": 0.9},
        {"is_validated": False, "one_of": ("node-0", "node-1"), "confidence": 0.4},
        {"is_validated": False, "one_of": ("node-0", "node-1", "node-2"), "confidence": 0.9},
        {"nodes": ("elsewhere",)},
        {"slowdown": 1.0},
        {"slowdown": 1.0 + 1e-15},
        {"slowdown": 1.00001},
        {"generation": 1},
    ],
)
def test_no_machine_is_replaced_for_less(changes: dict[str, Any]) -> None:
    scene = Scene()
    event = located(**changes)
    scene.receive(event)
    assert scene.at(10_000).is_nothing


def test_slowness_that_passes_costs_no_machine() -> None:
    scene = Scene()
    scene.receive(located())
    scene.receive(relieved(is_over=False))
    assert scene.controller.jobs["job"].slow is not None
    scene.receive(relieved(is_over=True))
    assert scene.at(10_000).is_nothing


def test_after_an_outage_of_the_bus_relief_is_awaited() -> None:
    scene = Scene()
    scene.receive(located())
    assert scene.at(130, hearing_since=None).is_nothing
    assert scene.at(130, hearing_since=NOW + timedelta(seconds=100)).is_nothing
    assert scene.at(220, hearing_since=NOW + timedelta(seconds=100)).events


@pytest.mark.parametrize(
    "changes",
    [
        {"nodes": (), "links": (("node-0", "node-1"),)},
        {"nodes": (), "links": (("node-0", "node-1"), ("node-1", "node-0"))},
        {"nodes": (), "is_validated": False, "one_of": ("node-0", "node-1"), "confidence": 0.54},
    ],
)
def test_a_slow_group_is_evicted_and_tested(changes: dict[str, Any]) -> None:
    scene = Scene()
    scene.receive(located(**changes))
    assert scene.at(119).is_nothing
    events = scene.replaced_at(120)
    evictions = [event for event in events if isinstance(event, Eviction)]
    assert [(it.node, it.together) for it in evictions] == [
        ("node-0", ("node-0", "node-1")),
        ("node-1", ("node-0", "node-1")),
    ]
    (opened,) = (event for event in events if isinstance(event, IncidentOpened))
    assert opened.node is None and "one of node-0, node-1 makes the job slow" in opened.reason
    (run,) = (state for state in scene.controller.jobs.values() if state.suspect_test)
    assert run.suspect_test is not None and run.spec.only_nodes == run.suspect_test.nodes == ("node-0", "node-1")
    assert (run.suspect_test.for_speed, run.suspect_test.witnesses) == (True, 2)


def test_stacks_do_not_overrule_tests() -> None:
    scene = Scene()
    scene.receive(located())
    scene.receive(located(nodes=(), is_validated=False, one_of=("node-0", "node-2"), confidence=0.9))
    (eviction,) = (event for event in scene.replaced_at(120) if isinstance(event, Eviction))
    assert eviction.node == "node-1"


def test_a_slow_machine_is_replaced_after_an_incident_that_was_open_when_it_was_due() -> None:
    scene = Scene()
    scene.receive(located())
    job = scene.controller.jobs["job"]
    scene.controller.jobs["job"] = job.update(incident=incident())
    assert scene.at(130).is_nothing and scene.at(200).is_nothing
    scene.controller.jobs["job"] = scene.controller.jobs["job"].update(incident=None)
    assert any(isinstance(event, Eviction) for event in scene.replaced_at(201))


def test_a_slow_machine_does_not_suspend_other_deadlines() -> None:
    scene = Scene()
    scene.receive(located())
    until = NOW + timedelta(seconds=300)
    job = scene.controller.jobs["job"]
    deadline = Deadline(awaited=Awaited.RANKS_STOPPED, since=NOW, until=until)
    scene.controller.jobs["job"] = job.update(phase=Stopping(ending=ENDING, deadline=deadline))
    assert scene.at(299).is_nothing
    assert any(isinstance(event, DeadlinePassed) for event in scene.at(301).events)


def test_slowness_costs_since_its_first_slow_iteration() -> None:
    """Half of the time is lost, and a minute's worth takes two, whenever it is known why."""
    scene = Scene()
    scene.receive(onset(after_s=10.0))
    scene.receive(located(at=NOW + timedelta(seconds=60)))
    assert scene.at(119).is_nothing
    assert any(isinstance(event, Eviction) for event in scene.replaced_at(120))


@pytest.mark.parametrize("absurd", [1000, 1 << 53])
def test_slowness_costs_nothing_before_its_generation_began(absurd: int) -> None:
    scene = Scene()
    scene.receive(msgspec.structs.replace(onset(after_s=10.0), detected_after=absurd))
    scene.receive(located(at=NOW + timedelta(seconds=60)))
    assert scene.at(119).is_nothing
    assert any(isinstance(event, Eviction) for event in scene.replaced_at(120))


def test_slowness_that_tests_found_over_costs_since_it_is_located_again() -> None:
    scene = Scene()
    scene.receive(onset(after_s=10.0))
    scene.receive(located(nodes=(), ranks=(), fault="unknown", summary="all compute as fast"))
    scene.receive(located(at=NOW + timedelta(seconds=60)))
    assert scene.at(179).is_nothing and scene.at(180).events


@pytest.mark.parametrize(
    ("later", "is_suspect"), [((), True), ((MarkKind.RELEASED,), False), ((MarkKind.EVICTED, MarkKind.CLEARED), False)]
)
def test_a_node_that_tests_found_slow_before_is_the_suspect_of_a_slow_job_in_which_none_is_named(
    later: tuple[MarkKind, ...], is_suspect: bool
) -> None:
    scene = Scene()
    record = NodeRecord(node="node-1")
    for kind in (MarkKind.EVICTED, MarkKind.CONFIRMED, *later):
        slow = Mark(at=NOW - timedelta(days=3), kind=kind, job="other", symptom=Symptom.MFU_DECLINE, text="21 GFLOP/s")
        record = record.with_mark(slow)
    earlier = Mark(at=NOW - timedelta(days=9), kind=MarkKind.CONFIRMED, symptom=Symptom.MFU_DECLINE)
    scene.controller.records["node-1"] = record
    if is_suspect:
        scene.controller.records["node-2"] = NodeRecord(node="node-2").with_mark(earlier)
    scene.receive(onset())
    scene.receive(located(nodes=(), ranks=(), is_validated=False, fault="unknown", summary="no machine is named"))
    if not is_suspect:
        assert scene.at(120).is_nothing
        return
    (eviction,) = (event for event in scene.replaced_at(120) if isinstance(event, Eviction))
    assert eviction.node == "node-1" and eviction.together == ("node-1",)
    assert "tests of it found before: 21 GFLOP/s" in eviction.reason


def test_a_node_that_has_trained_at_the_usual_pace_is_no_suspect_for_what_was_found_before() -> None:
    scene = Scene()
    slow = Mark(at=NOW - timedelta(days=3), kind=MarkKind.CONFIRMED, symptom=Symptom.MFU_DECLINE)
    scene.controller.records["node-1"] = NodeRecord(node="node-1").with_mark(slow)
    scene.receive(onset(after_s=3600.0))
    assert scene.at(4500).is_nothing


def test_tests_that_name_no_machine_overrule_what_was_found_before() -> None:
    scene = Scene()
    slow = Mark(at=NOW - timedelta(days=3), kind=MarkKind.CONFIRMED, symptom=Symptom.MFU_DECLINE)
    scene.controller.records["node-1"] = NodeRecord(node="node-1").with_mark(slow)
    scene.receive(onset())
    scene.receive(located(nodes=(), ranks=(), fault="unknown", summary="all compute as fast"))
    assert scene.at(500).is_nothing
