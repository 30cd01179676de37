"""What the controller hears, and which jobs it is about. Pure."""

from __future__ import annotations

from holdfast.events import (
    BadNumber,
    DiagnosticResult,
    Event,
    FailSlowLocated,
    FailSlowRelieved,
    FirstStep,
    HangFound,
    Inspection,
    NodeDeparted,
    NodeLost,
    NodesAwaited,
    NodesGranted,
    OrderRefused,
    ProcessExited,
    Progress,
    RanksFinished,
    RanksStarted,
    RanksStopped,
    ReplayResult,
    StepRestorable,
    StepsCertified,
    StepTimeMeasured,
)
from holdfast_controller.plan.job import OVER, JobState


def concerns(event: Event, states: dict[str, JobState]) -> list[str]:
    """The jobs that an event is about: the one it names, or those that hold the node it names."""
    if event.job is not None:
        return [event.job] if event.job in states else []
    if event.node is None:
        return []
    return [name for name, state in states.items() if state.phase not in OVER and event.node in state.nodes]


HANDLED: tuple[type[Event], ...] = (
    NodesGranted,
    NodesAwaited,
    RanksStarted,
    FirstStep,
    Progress,
    RanksFinished,
    RanksStopped,
    ProcessExited,
    NodeLost,
    NodeDeparted,
    StepTimeMeasured,
    StepRestorable,
    BadNumber,
    StepsCertified,
    OrderRefused,
    Inspection,
    DiagnosticResult,
    ReplayResult,
    HangFound,
    FailSlowLocated,
    FailSlowRelieved,
)
"""The events that a decision can follow from."""
