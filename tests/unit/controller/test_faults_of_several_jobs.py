"""A shared thing that nodes of several jobs report is at fault, whichever job reports it first."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Literal, TypeVar

import pytest

from holdfast.events import Event, Eviction, Inspection, NodesRequested, SharedFaultFound
from holdfast.events.parts.job import Grant, JobSpec
from holdfast.fresh_ids import uuid7
from holdfast.settings.decisions.ladder import LadderPolicy
from holdfast_controller.plan.draft import Rules
from holdfast_controller.plan.job import JobState
from holdfast_controller.plan.phase import Running
from holdfast_controller.service import Controller
from holdfast_controller.store import INCIDENTS, JOBS, USED_NAMES

NOW = datetime(2026, 1, 1, tzinfo=UTC)
E = TypeVar("E", bound=Event)
JOB_OF = {"a": "one", "b": "two", "free": None}
"""Agents name the job whose ranks they run."""
WAIT_S = LadderPolicy().alerts_wait_s


def at(second: float) -> datetime:
    return NOW + timedelta(seconds=second)


def job(name: str, node: str) -> JobState:
    return JobState(
        spec=JobSpec(name=name, script="t.py", cwd="/", directory=f"/jobs/{name}"),
        phase=Running(since=NOW, step_seen_at=NOW),
        submitted_at=NOW,
        members=(Grant(node=node, epoch=1, address="10.0.0.1", store_ports=(29500,)),),
        generation=1,
        ordered_by=uuid7(),
    )


class Scene:
    def __init__(self) -> None:
        self.controller = Controller(Rules())
        jobs = {"one": job("one", "a"), "two": job("two", "b")}
        self.controller.load({JOBS.name: jobs, INCIDENTS.name: {}, USED_NAMES.name: {}})
        self.events: list[Event] = []

    def alert(
        self, node: str, second: float, shared: str = "file server nas", confidence: Literal["evict", "hint"] = "evict"
    ) -> None:
        event = Inspection(
            id=uuid7(),
            at=at(second),
            source=f"agent/{node}",
            job=JOB_OF[node],
            generation=1 if JOB_OF[node] else None,
            node=node,
            check="mounts",
            state="alert",
            symptom="filesystem_mount",
            confidence=confidence,
            device="/data",
            shared=shared,
        )
        effect = self.controller.on_event(event, at(second))
        self.controller.adopt(effect)
        self.events += effect.events

    def wait(self, second: float) -> None:
        effect = self.controller.on_time(at(second), NOW)
        self.controller.adopt(effect)
        self.events += effect.events

    def of(self, kind: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kind)]


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_nodes_of_two_jobs_that_miss_one_server_stay(order: tuple[str, str]) -> None:
    scene = Scene()
    for second, node in enumerate(order):
        scene.alert(node, second)
    scene.wait(2 * WAIT_S)
    found = scene.of(SharedFaultFound)
    assert {event.job for event in found} == {"one", "two"}
    assert len({event.id for event in found}) == len({event.incident for event in found}) == 2
    assert all(set(event.nodes) == {"a", "b"} for event in found)
    assert not scene.of(NodesRequested) and not scene.of(Eviction)


def test_a_free_node_is_a_witness_as_well() -> None:
    scene = Scene()
    scene.alert("a", 0)
    scene.alert("free", 1)
    scene.wait(2 * WAIT_S)
    (found,) = scene.of(SharedFaultFound)
    assert (found.job, set(found.nodes)) == ("one", {"a", "free"}) and not scene.of(NodesRequested)


def test_another_thing_or_a_device_of_the_same_name_is_no_comparison() -> None:
    for shared in ("file server other", ""):
        scene = Scene()
        scene.alert("a", 0, shared="" if not shared else "file server nas")
        scene.alert("b", 1, shared=shared)
        scene.wait(2 * WAIT_S)
        assert not scene.of(SharedFaultFound)
        assert {event.job for event in scene.of(NodesRequested)} == {"one", "two"}


def test_hints_of_two_jobs_are_not_compared() -> None:
    scene = Scene()
    scene.alert("a", 0, shared="RDMA of the job", confidence="hint")
    scene.alert("b", 1, shared="RDMA of the job", confidence="hint")
    assert not scene.of(SharedFaultFound)
