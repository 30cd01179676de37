"""What happened in one simulation, as judges read it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import TypeVar

from holdfast.events import ChecksStarted, Event, Eviction, EvictionRevoked, GenerationStarted, JobFinished
from holdfast_proving.inside.cluster import Cluster

E = TypeVar("E", bound=Event)


class History:
    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.scenario = cluster.scenario
        self.ledger = cluster.ledger
        self.end_s = cluster.agenda.seconds
        self.evictions = [(at_s, it) for at_s, it in self.of(Eviction)]
        self._revoked = [(at_s, it.node) for at_s, it in self.of(EvictionRevoked)]
        scratch = {plan.name for plan in self.scenario.jobs if plan.keeps == "nothing"}
        self.without_checkpoints = {it.job for _, it in cluster.log if (it.job or "").rpartition("-")[0] in scratch}
        """Jobs that a restart may cost more than slowness does."""
        self._ended = {event.job or "": at_s for at_s, event in self.of(JobFinished)}
        self._members: dict[str, list[tuple[float, tuple[str, ...]]]] = {}
        for at_s, event in cluster.log:
            if isinstance(event, GenerationStarted | ChecksStarted):
                self._members.setdefault(event.job or "", []).append((at_s, event.nodes))

    def of(self, kind: type[E]) -> Iterator[tuple[float, E]]:
        return ((at_s, event) for at_s, event in self.cluster.log if isinstance(event, kind))

    def members(self, job: str, at_s: float) -> tuple[str, ...]:
        """Return the nodes of the newest generation of a job that had started by then."""
        known = self._members.get(job, [])
        place = bisect_right(known, at_s, key=lambda entry: entry[0])
        return known[place - 1][1] if place else ()

    def jobs_at(self, at_s: float) -> list[str]:
        """Return the jobs that had not ended then."""
        return [job for job in self._members if at_s < self._ended.get(job, float("inf"))]

    def left(self, node: str, job: str, since_s: float, until_s: float) -> bool:
        """Return True if a node was no member of a job, or left it, by the end of this time."""
        is_over = self._ended.get(job, float("inf")) <= until_s
        return (
            is_over
            or node not in self.members(job, until_s)
            or any(event.node == node and since_s <= at_s <= until_s for at_s, event in self.evictions)
        )

    def blocked_until_s(self, at_s: float, event: Eviction) -> float:
        """Return the end of the block that began with this eviction."""
        revoked = (since_s for since_s, node in self._revoked if node == event.node and since_s >= at_s)
        return min(at_s + event.blocked_for_s, next(revoked, float("inf")))
