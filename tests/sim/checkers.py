"""What must hold in every simulated history, checked from outside the code that made it."""

from __future__ import annotations

from collections import Counter

from holdfast.events import (
    Decision,
    Eviction,
    GenerationStarted,
    IncidentClosed,
    IncidentOpened,
    JobFinished,
    MessageRejected,
)
from tests.sim.cluster import SimCluster


def check(cluster: SimCluster) -> None:
    """Raise on the first thing that must not be."""
    generations_only_grow(cluster)
    incidents_end_once(cluster)
    decisions_have_reasons(cluster)
    ids_are_unique(cluster)
    the_job_ends_once(cluster)
    nothing_is_rejected(cluster)


def generations_only_grow(cluster: SimCluster) -> None:
    started = [event.generation for event in cluster.log if isinstance(event, GenerationStarted)]
    assert started == sorted(set(started)), f"generations went back or came twice: {started}"


def incidents_end_once(cluster: SimCluster) -> None:
    opened = Counter(event.incident for event in cluster.log if isinstance(event, IncidentOpened))
    closed = Counter(event.incident for event in cluster.log if isinstance(event, IncidentClosed))
    assert all(count == 1 for count in opened.values()), f"opened twice: {opened}"
    assert opened == closed, f"opened {opened}, closed {closed}"


def decisions_have_reasons(cluster: SimCluster) -> None:
    for event in cluster.log:
        if isinstance(event, Decision):
            assert event.reason, f"{event.type} without a reason"
            assert event.cause, f"{event.type} without a cause"
        if isinstance(event, GenerationStarted | Eviction) and (event.generation or 0) > 1:
            assert event.incident, f"{event.type} of generation {event.generation} outside any incident"


def ids_are_unique(cluster: SimCluster) -> None:
    twice = [id for id, count in Counter(event.id for event in cluster.log).items() if count > 1]
    assert not twice, f"ids used twice: {twice}"


def the_job_ends_once(cluster: SimCluster) -> None:
    assert len(cluster.events_of(JobFinished)) == 1


def nothing_is_rejected(cluster: SimCluster) -> None:
    rejected = [event.error for event in cluster.log if isinstance(event, MessageRejected)]
    assert not rejected, f"a sound message was rejected: {rejected}"
