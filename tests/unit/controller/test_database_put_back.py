"""A database that was put back together with the bus: nodes report first that they obeyed orders which it forgot."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from holdfast.events import BusWentBack, Eviction, GenerationStarted, IncidentOpened, NodeDeparted, NodesRequested
from holdfast.fresh_ids import uuid7
from holdfast_controller.plan.loss.forgotten_orders import GENERATIONS_FORGOTTEN_MAX
from holdfast_controller.plan.phase import Starting
from tests.scenes.failing_job import FailingJob

AGE_S = 500


def went_back(scene: FailingJob, node: str, job: str | None = "job", generation: int = 4) -> None:
    fields: dict[str, Any] = {"stream": "EVIDENCE", "sequence": 1}
    scene.send(BusWentBack, node=node, newest_job=job, newest_generation=generation, **fields)


@pytest.fixture
def scene() -> FailingJob:
    """A job that runs in generation 1, by a database that forgot what came after it."""
    made = FailingJob(nodes=("a", "b"))
    made.train()
    made.now += timedelta(seconds=AGE_S)
    return made


def test_the_job_starts_again_at_once_under_a_number_that_it_cannot_have_had(scene: FailingJob) -> None:
    went_back(scene, "a")
    generation = scene.state.generation
    assert isinstance(scene.state.phase, Starting) and generation > AGE_S
    assert {order.fence for order in scene.controller.orders_in_force()} == {(1, generation)}
    (opened,) = scene.of(IncidentOpened)
    assert (opened.node, opened.reason) == (None, "the database went back to generation 1, and a had obeyed 4")
    went_back(scene, "b")
    assert scene.state.generation == generation, "the other node shows the same"
    scene.train()
    assert scene.state.incident is None, "the job is past the step at which it was"


@pytest.mark.parametrize("generation", [1, 2, 3, 4])
def test_nothing_follows_from_ranks_that_ended_before(scene: FailingJob, generation: int) -> None:
    went_back(scene, "a")
    before, known = scene.state, len(scene.events)
    for _ in range(3):
        scene.exit("b", generation=generation, exit_code=-9)
    assert (scene.state, scene.events[known:]) == (before, [])


def test_a_failure_of_the_new_generation_counts(scene: FailingJob) -> None:
    went_back(scene, "a")
    first = scene.state.generation
    scene.exit("b", exit_code=-9)
    assert scene.state.generation == first + 1
    scene.exit("b", generation=first, rank=1, exit_code=-11)
    assert {one.rank for one in scene.state.exits} == {0, 1}, "the end of its other rank arrives late"


@pytest.mark.parametrize(
    ("node", "job", "generation"),
    [
        ("a", "job", 1),
        ("a", "job", 0),
        ("a", "other", 4),
        ("a", None, 4),
        ("stranger", "job", 4),
        ("a", "job", AGE_S + 100 + GENERATIONS_FORGOTTEN_MAX),
    ],
    ids=["the same", "none", "another job", "no job", "not a member", "made up"],
)
def test_the_job_goes_on_if_no_member_obeyed_newer_orders_of_it(
    scene: FailingJob, node: str, job: str | None, generation: int
) -> None:
    went_back(scene, node, job, generation)
    assert (scene.state.generation, scene.state.next_generation) == (1, 2)
    assert [event.generation for event in scene.of(GenerationStarted)] == [1]


def test_an_agent_that_is_back_has_not_departed(scene: FailingJob) -> None:
    departed_at = scene.now
    went_back(scene, "a", generation=1)
    known = len(scene.events)
    event = NodeDeparted(id=uuid7(), at=departed_at, source="agent/a", node="a", instance=uuid7())
    scene.controller.adopt(scene.controller.on_event(event, scene.now))
    assert scene.state.nodes == ("a", "b") and not scene.events[known:]
    scene.send(NodeDeparted, node="a", instance=uuid7())
    assert scene.of(NodesRequested)[-1].count == 1 and not scene.of(Eviction), "now it has"


@pytest.mark.parametrize(
    ("on_bus", "all_published", "is_by_age"),
    [(1, True, False), (4, True, True), (0, True, True), (0, False, False), (4, False, True)],
    ids=["as the database", "the database went back", "the bus went back", "on its way", "both"],
)
def test_a_controller_that_starts_counts_by_the_age_of_the_job_if_the_bus_has_other_orders(
    scene: FailingJob, on_bus: int, all_published: bool, is_by_age: bool
) -> None:
    scene.controller.count_from({"job": on_bus}, scene.now, all_published=all_published)
    assert (scene.state.generation, scene.state.next_generation > AGE_S) == (1, is_by_age)
