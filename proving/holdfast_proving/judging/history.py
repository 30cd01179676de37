"""What happened in one simulation, as judges read it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from holdfast.events import (
    ChecksStarted,
    DiagnosticResult,
    Event,
    Eviction,
    EvictionRevoked,
    FailSlowLocated,
    FailSlowRelieved,
    GenerationStarted,
    HangFound,
    JobFinished,
    NodeDeparted,
    NodeLost,
    NodeStateChanged,
    ReplayEnded,
)
from holdfast_proving.inside.cluster import Cluster
from holdfast_proving.truth.generator import HOUR_S

E = TypeVar("E", bound=Event)


GRACE_S = 600.0
"""A fault that ended so shortly before may still be acted on."""
BACK_WITHIN_S = HOUR_S
"""Innocent nodes that are tested are back, and nodes that were away unblocked, within this time."""
NAMED_S = 2 * HOUR_S
"""Evidence that is older does not justify an eviction."""


class Departure(NamedTuple):
    """A node that was a member of a job when a generation started, and no more at the next start."""

    since_s: float
    until_s: float
    job: str
    node: str


class History:
    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.scenario = cluster.scenario
        self.ledger = cluster.ledger
        self.end_s = cluster.agenda.seconds
        self._by_kind: dict[type[Event], list[tuple[float, Event]]] = {}
        for entry in cluster.log:
            self._by_kind.setdefault(type(entry[1]), []).append(entry)
        self.evictions = [(at_s, it) for at_s, it in self.of(Eviction)]
        self.departures: list[Departure] = []
        self._named = [(at_s, event.job, names) for at_s, event in cluster.log if (names := _names(event))]
        self._relieved = [(at_s, it.job) for at_s, it in self.of(FailSlowRelieved) if it.is_over]
        self._gone: dict[str, list[float]] = {}
        for kind in (NodeLost, NodeDeparted):
            for at_s, it in self.of(kind):
                self._gone.setdefault(it.node or "", []).append(at_s)
        self._revoked = [(at_s, it.node) for at_s, it in self.of(EvictionRevoked)]
        scratch = {plan.name for plan in self.scenario.jobs if plan.keeps == "nothing"}
        self.without_checkpoints = {it.job for _, it in cluster.log if (it.job or "").rpartition("-")[0] in scratch}
        """Jobs that a restart may cost more than slowness does."""
        planned = {plan.name for plan in self.scenario.jobs}
        self.trainings = {it.job for _, it in cluster.log if it.job and it.job.rpartition("-")[0] in planned}
        """Jobs of the scenario: others test machines."""
        self._ended = {event.job or "": at_s for at_s, event in self.of(JobFinished)}
        self._free: list[tuple[float, int]] = []
        free: set[str] = set()
        for at_s, changed in self.of(NodeStateChanged):
            (free.add if changed.new_state == "standby" else free.discard)(changed.node or "")
            self._free.append((at_s, len(free)))
        self._members: dict[str, list[tuple[float, tuple[str, ...]]]] = {}
        for at_s, event in cluster.log:
            if isinstance(event, GenerationStarted | ChecksStarted):
                known = self._members.setdefault(event.job or "", [])
                for node in sorted(frozenset(known[-1][1]) - frozenset(event.nodes)) if known else ():
                    self.departures.append(Departure(known[-1][0], at_s, event.job or "", node))
                known.append((at_s, event.nodes))

    def of(self, kind: type[E]) -> Sequence[tuple[float, E]]:
        """Return the events of this type, with their times."""
        return self._by_kind.get(kind, ())  # type: ignore[return-value]

    def members(self, job: str, at_s: float) -> tuple[str, ...]:
        """Return the nodes of the newest generation of a job that had started by then."""
        known = self._members.get(job, [])
        place = bisect_right(known, at_s, key=lambda entry: entry[0])
        return known[place - 1][1] if place else ()

    def joined(self, at_s: float, event: GenerationStarted) -> list[str]:
        """Return the nodes that were no members before this start."""
        known = self._members.get(event.job or "", [])
        place = bisect_left(known, at_s, key=lambda entry: entry[0])
        return sorted(frozenset(event.nodes) - frozenset(known[place - 1][1] if place else ()))

    def jobs_at(self, at_s: float) -> list[str]:
        """Return the jobs that had not ended then."""
        return [job for job in self._members if at_s < self._ended.get(job, float("inf"))]

    def has_free(self, at_s: float, count: int = 1) -> bool:
        """Return True if so many machines were well then that no job had."""
        members = {node for job in self.jobs_at(at_s) for node in self.members(job, at_s)}
        return count <= sum(
            machine not in members
            and not self.ledger.is_at_fault(machine, at_s)
            and not self.ledger.was_away(machine, at_s, 60.0)
            for machine in self.cluster.machines
        )

    def standbys(self, at_s: float) -> int:
        """Return the number of nodes that a job could have been given just before this moment."""
        place = bisect_left(self._free, at_s, key=lambda entry: entry[0])
        return self._free[place - 1][1] if place else 0

    def was_at_fault(self, job: str | None, node: str, at_s: float) -> bool:
        """Return True if a node is at fault, or was a moment ago, and production could not know that it is over."""
        for fault in self.ledger.of_machine(node, at_s, GRACE_S):
            ended_s = self.ledger.records[fault.number].ended_s
            is_over = ended_s is not None and ended_s < at_s
            is_relieved = is_over and fault.kind.effect == "slow" and self.was_relieved(job, ended_s or 0.0, at_s)
            if fault.culprit == node and not is_relieved:
                return True
        return False

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

    def is_back(self, at_s: float, event: Eviction) -> bool:
        """Return True if the block that began with this eviction is over."""
        return self.blocked_until_s(at_s, event) <= self.end_s

    def is_kept_out(self, at_s: float, event: Eviction) -> bool:
        """Return True if a node was not back in time."""
        return self.blocked_until_s(at_s, event) > at_s + BACK_WITHIN_S < self.end_s

    def is_revoked(self, at_s: float, event: Eviction) -> bool:
        """Return True if this eviction was taken back before the node left another job."""
        return self.blocked_until_s(at_s, event) < at_s + event.blocked_for_s

    def named(self, job: str | None, at_s: float) -> frozenset[str]:
        """Return the nodes that any evidence about a job had named lately."""
        return frozenset[str]().union(
            *(names for since_s, of, names in self._named if of == job and 0.0 <= at_s - since_s < NAMED_S)
        )

    def was_relieved(self, job: str | None, since_s: float, until_s: float) -> bool:
        """Return True if it was found in this time that a job is slow no longer."""
        return any(of == job and since_s <= at_s < until_s for at_s, of in self._relieved)

    def was_gone(self, it: Departure) -> bool:
        """Return True if the node was lost, or its agent shut down, before it left the job."""
        return any(it.since_s <= at_s <= it.until_s for at_s in self._gone.get(it.node, ()))

    def was_evicted(self, it: Departure) -> bool:
        return any(
            it.since_s <= at_s <= it.until_s and (event.node, event.job) == (it.node, it.job)
            for at_s, event in self.evictions
        )


def _names(event: Event) -> frozenset[str]:
    """Return the nodes that an event names as possibly at fault."""
    match event:
        case HangFound():
            return frozenset(event.nodes)
        case FailSlowLocated():
            return frozenset((*event.nodes, *event.one_of, *(end for link in event.links for end in link)))
        case DiagnosticResult() if event.status == "failed":
            return frozenset((event.node or "", *event.peers))
        case ReplayEnded():
            return frozenset(event.suspects)
        case _:
            return frozenset()
