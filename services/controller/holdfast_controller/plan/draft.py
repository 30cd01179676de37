"""A decision about a job while it is made: its next state, the events to publish and the orders to nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec

from holdfast.code.manifest import Manifest
from holdfast.engines.checks.references import NO_REFERENCES, Reference, References
from holdfast.engines.record.history import NodeRecord
from holdfast.engines.record.node_records import NO_RECORDS, NodeRecords
from holdfast.engines.record.racks import RackFinding, suspect_racks
from holdfast.events import Event, IncidentClosed, NodesReleased, NodesRequested, SharedFaultOver
from holdfast.events.parts.job import Grant
from holdfast.ids import derived_id
from holdfast.orders.node import NodeOrder
from holdfast.settings.code import CodePolicy
from holdfast.settings.decisions.ladder import LadderPolicy
from holdfast.settings.decisions.record import RecordPolicy
from holdfast.settings.decisions.warm_up import WarmUpPolicy
from holdfast.settings.findings.hang import HangPolicy
from holdfast.settings.mechanisms import MechanismPolicy
from holdfast.settings.timeouts import Timeouts
from holdfast_controller.plan.doubt.doubt_records import SharedFault
from holdfast_controller.plan.elastic import sizes
from holdfast_controller.plan.incident.incident import ClosedIncident, Incident
from holdfast_controller.plan.job import JobState
from holdfast_controller.plan.orders import idle_orders
from holdfast_controller.plan.own_nodes import with_left
from holdfast_controller.plan.phase import Awaited, Claiming, Deadline
from holdfast_controller.plan.record.finding import AVOIDED_MAX, avoided

RACKS_EXPLAINED_MAX = 3
SOURCE = "controller"
NO_MANIFESTS: Mapping[str, Manifest] = MappingProxyType({})
E = TypeVar("E", bound=Event)

NOWHERE: Mapping[str, datetime] = MappingProxyType({})


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that decisions go by, and what is known beside the state of jobs."""

    timeouts: Timeouts = Timeouts()
    ladder: LadderPolicy = LadderPolicy()
    mechanisms: MechanismPolicy = MechanismPolicy()
    hang: HangPolicy = HangPolicy()
    code: CodePolicy = CodePolicy()
    manifests: Mapping[str, Manifest] = NO_MANIFESTS
    """Manifests of the code versions that the controller holds; a version never changes."""
    references: References = NO_REFERENCES
    """Answers of tests that machines agreed on."""
    record: RecordPolicy = RecordPolicy()
    warm_up: WarmUpPolicy | None = None
    """None: no job has a warm-up."""
    records: NodeRecords = NO_RECORDS
    """Records of nodes, over all jobs."""
    elsewhere: Mapping[str, datetime] = NOWHERE
    """Nodes of other jobs that report the shared thing of the alert that is handled, and when they did first."""


class JobDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The consequences of an input for a job. The reasons are in the events."""

    state: JobState | None
    events: tuple[Event, ...] = ()
    orders: tuple[NodeOrder, ...] = ()
    closed: tuple[Incident, ...] = ()
    closed_shared: tuple[SharedFault, ...] = ()
    learned: tuple[Reference, ...] = ()
    noted: tuple[NodeRecord, ...] = ()
    """Records of nodes that changed."""
    refusal: str = ""
    """Why a request was refused; empty if it was not."""


class JobDraft:
    """Collects a decision. Ids of its events derive from the cause, so that repeating the decision repeats them.

    `apart`: an id from which they derive instead, if more than one decision may follow from the same cause.
    """

    def __init__(self, state: JobState, cause: str, now: datetime, rules: Rules, *, apart: str = "") -> None:
        self.state = self._before = state
        self.cause = cause
        self.now = now
        self.rules = rules
        self.learned: tuple[Reference, ...] = ()
        self.records = NodeRecords(on_top_of=rules.records)
        """Records of nodes, with the changes that this decision makes."""
        self._apart = apart
        self._events: list[Event] = []
        self._orders: list[NodeOrder] = []
        self._closed: list[Incident] = []
        self._closed_shared: list[SharedFault] = []

    def fresh_id(self, *parts: str, nth: int | None = None) -> str:
        """Return the id of something that this decision makes, the same if it is repeated."""
        return derived_id(self._apart or self.cause, *parts, nth=nth)

    def emit(self, kind: type[E], **fields: Any) -> E:
        """Add an event of this job, caused by what is being handled, and return it."""
        incident = self.state.incident
        fields.setdefault("incident", incident.id if incident else None)
        event = kind(
            id=self.fresh_id(kind.__name__, nth=len(self._events)),
            source=SOURCE,
            **{
                "job": self.state.job,
                "at": self.now,
                "cause": self.cause,
                "generation": self.state.generation or None,
                **fields,
            },
        )
        self._events.append(event)
        return event

    def order(self, orders: Iterable[NodeOrder]) -> None:
        self._orders.extend(orders)

    def order_idle(self, ordered_by: str | None = None) -> None:
        """Order all members to run no ranks; this uses up a generation number."""
        self.update(generation=self.state.next_generation, ordered_by=ordered_by or self.cause)
        self.order(idle_orders(self.state))

    def update(self, **changes: object) -> None:
        self.state = self.state.update(**changes)

    def update_phase(self, **changes: object) -> None:
        self.state = self.state.within_phase(**changes)

    @property
    def incident(self) -> Incident:
        """The open incident; there must be one."""
        assert self.state.incident is not None, f"job {self.state.job} has no open incident"
        return self.state.incident

    def update_incident(self, **changes: object) -> None:
        self.update(incident=msgspec.structs.replace(self.incident, **changes))

    def close_incident(self, outcome: str, reason: str) -> None:
        incident = self.state.incident
        if incident is None:
            return
        self.emit(
            IncidentClosed,
            outcome=outcome,
            attempts=incident.attempts,
            reason="; ".join((reason, *incident.what_was_lost)),
            symptom=incident.symptom_name,
            summary=incident.full_summary,
            lost_steps=incident.lost_steps,
            redone_steps=incident.redone_steps,
        )
        self._closed.append(incident)
        exits = self.state.exits
        closed = ClosedIncident(incident=incident, closed_at=self.now, outcome=outcome, exits=exits)
        restarts = self.state.settled_restarts + incident.restarts
        self.update(incident=None, settled=None, exits=(), closed=closed if exits else None, settled_restarts=restarts)

    def close_shared_fault(self, key: str, why: str) -> None:
        """End the incident of a fault that nodes share."""
        fault = self.state.shared[key]
        self.update(shared={other: it for other, it in self.state.shared.items() if other != key})
        self.emit(
            SharedFaultOver,
            incident=fault.incident,
            thing=fault.thing,
            nodes=fault.nodes,
            reason=f"{why}; it lasted {(self.now - fault.since).total_seconds():.0f} s",
        )
        self._closed_shared.append(fault)

    def request_nodes(self, reason: str, more: int = 0, incident: str | None = None) -> NodesRequested:
        """Request as many nodes as are missing, and some more; the newer request replaces the older one."""
        spec = self.state.spec
        racks = self._suspect_racks()
        request = self.emit(
            NodesRequested,
            at=self._after_last_claim(),
            count=self.state.vacancies + more,
            **self._elastic(more),
            only=tuple(node for node in spec.only_nodes if node not in self.state.nodes),
            witnesses=self.state.witnesses_missing,
            purpose=self.state.purpose,
            trains_on=more > 0,
            avoid=self._avoided(),
            avoid_racks=tuple(rack.rack for rack in racks),
            why_avoided="; ".join(rack.in_words(self.rules.record) for rack in racks[:RACKS_EXPLAINED_MAX]),
            reason=reason,
            **({"incident": incident} if incident else {}),
        )
        self.update(claimed_at=request.at, replacement=None, free_nodes=None)
        if isinstance(self.state.phase, Claiming):
            self.update_phase(claim=request.id)
        return request

    def request_nodes_to_grow(self, reason: str, *, most: int, fewest: int) -> NodesRequested:
        """Request nodes in addition while the job trains on; the reserve of the pool is left to others."""
        request = self.emit(
            NodesRequested,
            at=self._after_last_claim(),
            count=most,
            enough=fewest,
            trains_on=True,
            leaves_reserve=True,
            avoid=self._avoided(),
            reason=reason,
        )
        self.update(claimed_at=request.at)
        return request

    def _elastic(self, more: int) -> dict[str, float]:
        """Return how few nodes an elastic job accepts; nothing if it is none, or replaces nodes that it holds."""
        if more or not self.state.spec.is_elastic:
            return {}
        wanted, own_s = sizes.wanted(self.state), self.state.spec.launch.last_call_s
        last_call_s = self.rules.timeouts.last_call_s if own_s is None else own_s
        return {"enough": wanted.enough, "at_least": wanted.at_least, "last_call_s": last_call_s}

    def _avoided(self) -> tuple[str, ...]:
        if self.rules.mechanisms.record == "observe":
            return ()
        return avoided(self.records.values(), self.now, self.rules.record)

    def _suspect_racks(self) -> tuple[RackFinding, ...]:
        if self.rules.mechanisms.record == "observe":
            return ()
        return suspect_racks(self.records.values(), self.now, self.rules.record)[:AVOIDED_MAX]

    def release(self, held: tuple[Grant, ...], reason: str, *, withdraws_claim: bool = False) -> None:
        """Give nodes back; at the end of the job also withdraw the request for more."""
        self.emit(
            NodesReleased,
            at=self._after_last_claim() if withdraws_claim else self.now,
            nodes=tuple(grant.node for grant in held),
            epochs=tuple(grant.epoch for grant in held),
            departed=tuple(self.state.departed[grant.node] for grant in held if grant.node in self.state.departed),
            withdraws_claim=withdraws_claim,
            reason=reason,
        )

    def release_all(self, reason: str) -> None:
        for key in self.state.shared:
            self.close_shared_fault(key, reason)
        self.release(tuple(filter(None, self.state.members)), reason, withdraws_claim=True)

    def _after_last_claim(self) -> datetime:
        # The standby service compares the times of claims, and a clock may be set back.
        last = self.state.claimed_at
        return self.now if last is None else max(self.now, last + timedelta(microseconds=1))

    def deadline(self, awaited: Awaited, limit_s: float) -> Deadline:
        until = datetime.fromtimestamp(self.now.timestamp() + limit_s, tz=self.now.tzinfo)
        return Deadline(awaited=awaited, since=self.now, until=until)

    def decision(self) -> JobDecision:
        self.state = with_left(self.state, self._before)
        return JobDecision(
            state=self.state,
            events=tuple(self._events),
            orders=tuple(self._orders),
            closed=tuple(self._closed),
            closed_shared=tuple(self._closed_shared),
            learned=self.learned,
            noted=self.records.changes(),
        )
