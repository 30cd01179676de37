"""The recorded cost of a parting, and what the other response costs as a rule: its median in the record. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from statistics import median

import msgspec

from holdfast.events import (
    ChecksStarted,
    Event,
    Eviction,
    IncidentClosed,
    IncidentOpened,
    JobStopping,
    Reattempt,
    ReplayStarted,
    Rollback,
    Suspension,
)
from holdfast_controller.backtest.lockstep import Parting

RESPONSES = (JobStopping, Eviction, ReplayStarted, ChecksStarted, Rollback, Suspension, Reattempt)
"""Decisions that a response to a failure consists of; the one that costs most comes first."""


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of a parting, and the usual cost of the other decision. None: not known."""

    recorded_s: float | None
    """Seconds from the parting to the end of the incident."""
    recorded_machines: int
    """Machines evicted from the parting to the end of the incident."""
    lost_steps: int | None
    estimated_s: float | None
    """Median time after this response until the next one, or the end of the incident."""
    estimated_from: int
    """Number of recorded responses in the median."""
    estimated_machines: int


def response_of(decided: Iterable[Event]) -> str:
    """Return the type of the response that these decisions make; "" if they make none."""
    kinds = {type(event): event.type for event in decided}
    return next((kinds[kind] for kind in RESPONSES if kind in kinds), "")


class Costs:
    """The costs in one record."""

    def __init__(self, decisions: Sequence[Event]) -> None:
        self._by_incident: dict[str, list[Event]] = {}
        for event in sorted(decisions, key=lambda event: (event.at, event.id)):
            if event.incident:
                self._by_incident.setdefault(event.incident, []).append(event)
        self._took: dict[str, list[float]] = {}
        for events in self._by_incident.values():
            self._measure(events)

    def of(self, parting: Parting) -> Cost:
        """Return the cost of a parting."""
        later = [event for event in self._by_incident.get(parting.incident or "", ()) if event.at >= parting.at]
        closing = next((event for event in later if isinstance(event, IncidentClosed)), None)
        took = self._took.get(response_of(parting.would_decide), [])
        return Cost(
            recorded_s=(closing.at - parting.at).total_seconds() if closing else None,
            recorded_machines=_machines(later),
            lost_steps=closing.redone_steps if closing else None,
            estimated_s=median(took) if took else None,
            estimated_from=len(took),
            estimated_machines=_machines(parting.would_decide),
        )

    def _measure(self, events: Sequence[Event]) -> None:
        responses = _responses(events)
        closed = [event.at for event in events if isinstance(event, IncidentClosed)]
        ends = [at for at, _ in responses[1:]] + closed[:1]
        for (at, kind), end in zip(responses, ends, strict=False):
            self._took.setdefault(kind, []).append(max(0.0, (end - at).total_seconds()))


def _responses(events: Sequence[Event]) -> list[tuple[datetime, str]]:
    """Return the responses in an incident; decisions of the same moment are one."""
    moments: dict[datetime, list[Event]] = {}
    for event in events:
        if isinstance(event, (*RESPONSES, IncidentOpened)):
            moments.setdefault(event.at, []).append(event)
    return [(at, kind) for at, together in moments.items() if (kind := response_of(together))]


def _machines(events: Iterable[Event]) -> int:
    return len({event.node for event in events if isinstance(event, Eviction)})
