"""A job of three nodes that became slow, and a controller that decides about it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from holdfast.effects import Effect
from holdfast.events import (
    Event,
    FailSlowLocated,
    FailSlowOnset,
    FailSlowRelieved,
    Inspection,
    NodesGranted,
    NodesRequested,
)
from holdfast.events.parts.job import Grant, JobSpec
from holdfast.fresh_ids import uuid7
from holdfast.settings.decisions.ladder import LadderPolicy
from holdfast.settings.mechanisms import MechanismPolicy
from holdfast.symptoms import Symptom
from holdfast_controller.plan.draft import Rules
from holdfast_controller.plan.job import JobState
from holdfast_controller.plan.phase import Running
from holdfast_controller.service import Controller
from holdfast_controller.store import INCIDENTS, JOBS, USED_NAMES

NOW = datetime(2026, 1, 1, tzinfo=UTC)
POLICY = LadderPolicy(slow_cost_max_s=60, slow_lasts_s=0)
"""Algorithm 1 alone, whatever is known of how long slowness lasts."""


class Scene:
    """A job of three nodes that trains, and a controller."""

    def __init__(
        self, mechanisms: MechanismPolicy | None = None, *, can_resume: bool = True, ladder: LadderPolicy = POLICY
    ) -> None:
        grants = tuple(
            Grant(node=f"node-{number}", epoch=1, address="10.0.0.1", store_ports=(29500,)) for number in range(3)
        )
        state = JobState(
            spec=JobSpec(name="job", script="t.py", cwd="/", directory="/jobs/job", nnodes=3),
            phase=Running(since=NOW, step_seen_at=NOW),
            submitted_at=NOW,
            members=grants,
            generation=2,
            ordered_by=uuid7(),
            step=100,
            has_checkpoints=can_resume,
        )
        self.controller = Controller(Rules(ladder=ladder, mechanisms=mechanisms or MechanismPolicy()))
        self.controller.load({JOBS.name: {"job": state}, INCIDENTS.name: {}, USED_NAMES.name: {}})

    def receive(self, event: FailSlowLocated | FailSlowOnset | FailSlowRelieved | Inspection | NodesGranted) -> Effect:
        effect = self.controller.on_event(event, event.at)
        self.controller.adopt(effect)
        return effect

    def reported(self, after_s: float, **changes: Any) -> None:
        """An inspection of node-1 reports strangers that burn its processors."""
        fields: dict[str, Any] = {
            "node": "node-1",
            "generation": 2,
            "check": "pressure",
            "state": "alert",
            "confidence": "tolerate",
            "symptom": Symptom.CPU_OVERLOAD,
            "device": "cpu",
            "detail": "8 processes that are not the job's used 1.8 of 1.9 s",
        }
        at = NOW + timedelta(seconds=after_s)
        self.receive(Inspection(id=uuid7(), at=at, source="agent", job="job", **(fields | changes)))

    def replaced_at(self, after_s: float) -> tuple[Event, ...]:
        """Let time pass and grant the nodes that are requested then; return what follows."""
        (request,) = self.at(after_s).events
        assert isinstance(request, NodesRequested) and request.trains_on
        grants = tuple(
            Grant(node=f"spare-{number}", epoch=1, address="10.0.0.2", store_ports=(29500,))
            for number in range(request.count)
        )
        at = NOW + timedelta(seconds=after_s)
        granted = NodesGranted(id=uuid7(), at=at, source="standby", job="job", claim=request.id, grants=grants)
        return self.receive(granted).events

    def at(self, after_s: float, hearing_since: datetime | None = NOW) -> Effect:
        effect = self.controller.on_time(NOW + timedelta(seconds=after_s), hearing_since)
        self.controller.adopt(effect)
        return effect


def located(**changes: Any) -> FailSlowLocated:
    fields: dict[str, Any] = {
        "at": NOW,
        "generation": 2,
        "nodes": ("node-1",),
        "ranks": (1,),
        "slowdown": 2.0,
        "is_validated": True,
        "pace_s": 2.0,
        "healthy_s": 1.0,
        "fault": "computation",
        "summary": "rank 1 computes slowly",
    }
    return FailSlowLocated(id=uuid7(), source="analyzer", job="job", asked=uuid7(), **(fields | changes))


def onset(after_s: float = 0.0) -> FailSlowOnset:
    at = NOW + timedelta(seconds=after_s)
    fields = {"before_s": 1.0, "after_s": 2.0, "healthy_s": 1.0, "iteration": 50, "detected_after": 5}
    return FailSlowOnset(id=uuid7(), at=at, source="analyzer", job="job", generation=2, **fields)
