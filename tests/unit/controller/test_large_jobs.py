"""The cost of one event of a job depends neither on the number of its nodes nor on how many reported before."""

from __future__ import annotations

import asyncio
import sys
import tracemalloc
from collections.abc import Callable
from datetime import UTC, datetime
from statistics import median
from typing import Any

import pytest

from holdfast.engines.checks.replay_groups import ReplayPlan
from holdfast.engines.checks.suites import END
from holdfast.events import (
    DiagnosticResult,
    FirstStep,
    Inspection,
    NodeLost,
    ProcessExited,
    RanksFinished,
    RanksStarted,
    ReplayResult,
)
from holdfast.events.parts.job import Grant, JobSpec
from holdfast.events.parts.ranks import FoldedResult, RankReplay
from holdfast.fresh_ids import uuid7
from holdfast.growing import GrowingMap
from holdfast.orders.replay import ReplaySettings
from holdfast.store.in_memory import MemoryDatabase, MemoryStore
from holdfast.symptoms import Symptom
from holdfast_controller.plan.doubt import hints
from holdfast_controller.plan.draft import Rules
from holdfast_controller.plan.incident.incident import Alert, Failure, Incident
from holdfast_controller.plan.job import JobState, Slowdown
from holdfast_controller.plan.phase import (
    Awaited,
    Checking,
    ChecksProgress,
    Deadline,
    Ending,
    JobOutcome,
    JobPhase,
    Replaying,
    ReplayProgress,
    Running,
    Starting,
    Stopping,
)
from holdfast_controller.service import Controller
from holdfast_controller.store import JOBS, TABLES

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DEADLINE = Deadline(awaited=Awaited.CHECKS, since=NOW, until=NOW.replace(year=2027))
FAILURE = Failure(symptom=Symptom.SEGFAULT, generation=1, step=7, text="it crashed")
CHECKING = Checking(checks=ChecksProgress(suite="quick", began_at=NOW, failure=FAILURE), deadline=DEADLINE)
STARTING = Starting(deadline=DEADLINE)
STARTED = Starting(deadline=DEADLINE, started_at=NOW)
RUNNING = Running(since=NOW, step_seen_at=NOW)
STOPPING = Stopping(ending=Ending(outcome=JobOutcome.STOPPED, reason="asked", exit_code=143), deadline=DEADLINE)

FEW, MANY = 100, 1600
LAST = 50
"""Events that are measured, of nearly all nodes."""


def event(kind: type[Any], node: str, **fields: Any) -> Any:
    fields = {"generation": 2, **fields}
    return kind(id=uuid7(), at=NOW, source=f"agent/{node}", job="job", node=node, **fields)


def result(node: str) -> Any:
    folded = tuple(FoldedResult(test=test, value=800.0, unit="GB/s") for test in ("disk", "memory", "gemm"))
    return event(DiagnosticResult, node, run="job/2", test=END, status="passed", folded=folded)


def alert(node: str) -> Any:
    fields = {"state": "alert", "confidence": "tolerate", "symptom": "infiniband_error", "is_momentary": True}
    return event(Inspection, node, check="link", device="mlx5_0", **fields)


def killed(node: str) -> Any:
    """Return the end of a rank of the generation before, which arrives late."""
    fields = {"rank": int(node.rpartition("-")[2]), "local_rank": 0, "signal": 9, "exited_at": NOW}
    return event(ProcessExited, node, generation=1, step=7, steps_done=7, **fields)


def replayed(node: str) -> Any:
    rank = int(node.rpartition("-")[2]) % 2
    return event(ReplayResult, node, rank=rank, replay=RankReplay(first=0, last=9, digest="d"))


def replaying(nodes: int) -> JobPhase:
    plan = ReplayPlan(machines=nodes, size=2, mesh="dp=2", replicas=2)
    settings = ReplaySettings(until=9, mesh="dp=2", of_mesh=f"dp={nodes}")
    replay = ReplayProgress(plan=plan, settings=settings, began_at=NOW, failure=FAILURE, phase_began_at=NOW)
    return Replaying(replay=replay, deadline=DEADLINE)


EVENTS: dict[str, tuple[JobPhase | Callable[[int], JobPhase], Callable[[str], Any]]] = {
    "diagnostic_result": (CHECKING, result),
    "replay_result": (replaying, replayed),
    "ranks_started": (STARTING, lambda node: event(RanksStarted, node, ranks=(), took_s=1.0)),
    "first_step": (STARTED, lambda node: event(FirstStep, node, step=0, completed_at=NOW)),
    "inspection": (RUNNING, alert),
    "ranks_finished": (RUNNING, lambda node: event(RanksFinished, node, ranks=(0,))),
    "process_exited": (RUNNING, killed),
    "node_lost": (STOPPING, lambda node: event(NodeLost, node, silent_s=9.0, epoch=1, last_heard_at=NOW)),
}


class Scene:
    """A job and its controller, with a store in memory."""

    def __init__(self, nodes: int, phase: JobPhase) -> None:
        self.names = [f"node-{number:05}" for number in range(nodes)]
        self.database = MemoryDatabase()
        self.store = MemoryStore(self.database)
        self.controller = Controller(Rules())
        self.controller.load({table.name: {} for table in TABLES})
        members = (Grant(node=name, epoch=1, address="10.0.0.1", store_ports=(29500,)) for name in self.names)
        self.controller.jobs["job"] = JobState(
            spec=JobSpec(name="job", script="t.py", cwd="/", directory="/jobs/job", nnodes=nodes),
            phase=phase,
            submitted_at=NOW,
            members=tuple(members),
            generation=2,
            ordered_by=uuid7(),
            incident=Incident(id=uuid7(), opened_at=NOW, symptom=Symptom.SEGFAULT, failed_step=7),
        )

    @property
    def state(self) -> JobState:
        return self.controller.jobs["job"]

    async def handle(self, event: Any) -> tuple[int, int, int]:
        """Handle an event; return the calls and the memory that planning took, and the bytes that were stored."""
        calls = 0

        def count(_: Any, what: str, __: Any) -> None:
            nonlocal calls
            calls += what in ("call", "c_call")

        tracemalloc.start()
        sys.setprofile(count)
        try:
            effect = self.controller.on_event(event, NOW)
        finally:
            sys.setprofile(None)
            taken_bytes = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        before = self.store.written_bytes
        async with self.store.transaction() as tx:
            for row in effect.rows:
                await tx.save(row.table, row.key, row.row)
        self.controller.adopt(effect)
        return calls, taken_bytes, self.store.written_bytes - before


async def costs(nodes: int, kind: str) -> tuple[float, float, float]:
    phase, made = EVENTS[kind]
    phase = phase(nodes) if callable(phase) else phase
    scene = Scene(nodes, phase)
    found = [await scene.handle(made(name)) for name in scene.names[:-1]][-LAST:]
    assert type(scene.state.phase) is type(phase), "the phase goes on: one node is still to come"
    calls, taken, stored = zip(*found, strict=True)
    return median(calls), median(taken), median(stored)


@pytest.mark.parametrize("kind", EVENTS)
async def test_an_event_costs_the_same_at_any_number_of_nodes(kind: str) -> None:
    few, many = await asyncio.gather(costs(FEW, kind), costs(MANY, kind))
    assert many == pytest.approx(few, rel=0.1), "calls, memory and bytes stored"


def hints_of_a_hang(nodes: int) -> int:
    """Return how many calls it takes to find the hints about a hang that names no node of many that have one."""
    scene = Scene(nodes, RUNNING)
    hint = Alert(at=NOW, check="pcie", device="", symptom="mfu_decline", confidence="hint", text="", event="")
    state = scene.state.update(alerts=GrowingMap(dict.fromkeys(scene.names[:-1], (hint,))))
    hang = Failure(symptom=Symptom.HANG, generation=2, step=7, text="it hangs")
    calls = 0

    def count(_: Any, what: str, __: Any) -> None:
        nonlocal calls
        calls += what in ("call", "c_call")

    sys.setprofile(count)
    try:
        assert hints.about(state, hang, NOW, Rules().ladder) == (), "a hint about that many nodes has a cause in common"
    finally:
        sys.setprofile(None)
    return calls


def test_hints_about_all_nodes_are_compared_in_proportion_to_their_number() -> None:
    assert hints_of_a_hang(200) < 5 * hints_of_a_hang(50)


def test_hints_about_a_slow_job_are_compared_once_however_many_come_at_once() -> None:
    scene = Scene(MANY, RUNNING)
    slowdown = Slowdown(generation=2, since=NOW, lost_share=0.5, text="it is slow", event=uuid7())
    scene.controller.jobs["job"] = scene.state.update(slowdown=slowdown, incident=None)
    heat = {"state": "alert", "confidence": "hint", "symptom": "mfu_decline"}
    compared = 0

    def count(frame: Any, what: str, _: Any) -> None:
        nonlocal compared
        compared += what == "call" and frame.f_code is hints.reasons_to_be_slow.__code__

    sys.setprofile(count)
    try:
        for name in scene.names:
            scene.controller.adopt(scene.controller.on_event(event(Inspection, name, check="gpu", **heat), NOW))
        for _ in range(3):
            scene.controller.adopt(scene.controller.on_time(NOW, NOW))
    finally:
        sys.setprofile(None)
    assert compared == 1 and scene.state.slow is None


async def test_all_that_is_stored_grows_with_the_number_of_results() -> None:
    per_node = []
    for nodes in (FEW, MANY):
        scene = Scene(nodes, CHECKING)
        stored = [(await scene.handle(result(name)))[2] for name in scene.names[:-1]]
        per_node.append(sum(stored) / nodes)
    few, many = per_node
    assert many < 1.5 * few


async def test_a_controller_that_starts_again_amid_results_concludes_as_one_that_did_not() -> None:
    scene, undisturbed = Scene(FEW, CHECKING), Scene(FEW, CHECKING)
    undisturbed.controller.jobs["job"] = scene.state
    for number, name in enumerate(scene.names):
        reported = result(name)
        if number % 30 == 7:
            scene.store = MemoryStore(scene.database)
            async with scene.store.transaction() as tx:
                scene.controller.load({table.name: await tx.load_all(table) for table in TABLES})
        await scene.handle(reported)
        await scene.handle(reported)  # the bus may deliver it twice
        await undisturbed.handle(reported)
        assert scene.state == undisturbed.state, number
    assert not isinstance(scene.state.phase, Checking)
    async with MemoryStore(scene.database).transaction() as tx:
        assert await tx.load(JOBS, "job") == scene.state
