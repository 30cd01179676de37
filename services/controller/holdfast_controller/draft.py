"""What a decision leads to, while it is being made: the next state, events to say and orders to nodes."""

from __future__ import annotations

from datetime import datetime
from typing import Any, TypeVar

import msgspec

from holdfast.desired import NodeDesired, Placement
from holdfast.events import Event, GenerationStarted, Grant, IncidentClosed
from holdfast.ids import derived_id
from holdfast_controller.state import Await, Incident, JobPhase, JobState

SOURCE = "controller"
E = TypeVar("E", bound=Event)


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """A decision: the job's next state, what is said, and what nodes shall run. The reasons stand in the events.

    `closed` is the incident that ended with this decision; `refusal` says why a request was not accepted.
    """

    state: JobState | None
    events: tuple[Event, ...] = ()
    orders: tuple[NodeDesired, ...] = ()
    closed: tuple[Incident, ...] = ()
    refusal: str = ""


class Draft:
    """Collects an outcome. Everything it says is derived from the cause, so that repeating it repeats the ids."""

    def __init__(self, state: JobState, cause: str, now: datetime) -> None:
        self.state = state
        self.cause = cause
        self.now = now
        self._events: list[Event] = []
        self._orders: list[NodeDesired] = []
        self._closed: list[Incident] = []

    def say(self, kind: type[E], **fields: Any) -> E:
        """Add an event of this job, caused by what is being handled."""
        incident = self.state.incident
        fields.setdefault("incident", incident.id if incident else None)
        event = kind(
            id=derived_id(self.cause, kind.__name__, len(self._events)),
            at=self.now,
            source=SOURCE,
            job=self.state.job,
            cause=self.cause,
            **{"generation": self.state.generation or None, **fields},
        )
        self._events.append(event)
        return event

    def order_start(self, restart_reason: str) -> None:
        """Begin the next generation on all members.

        The ranks themselves choose the newest complete checkpoint: the catalogue's word may be older than the disk.
        """
        state = self.state
        members = [member for member in state.members if member]
        generation = state.generation + 1
        self.state = state.become(
            JobPhase.STARTING,
            generation=generation,
            started=frozenset(),
            stepped=frozenset(),
            finished=frozenset(),
            gone=frozenset(),
            suspended=False,
            awaiting=None,
        )
        decision = self.say(
            GenerationStarted,
            reason=restart_reason,
            nodes=self.state.nodes,
            world_size=state.spec.nnodes * state.spec.nproc_per_node,
            restore_step=state.restorable_step,
        )
        host = members[0]
        for node_rank, member in enumerate(members):
            placement = Placement(
                job=state.spec,
                node_rank=node_rank,
                master_addr=host.address,
                master_port=host.store_ports[generation % len(host.store_ports)],
            )
            self._order(member, generation, placement, decision.id)

    def order_idle(self, extra: tuple[Grant, ...] = ()) -> None:
        """Order all members, and `extra` ones that just left, to run no ranks; uses up a generation number."""
        generation = self.state.generation + 1
        self.state = self.state.update(generation=generation)
        for member in (*(member for member in self.state.members if member), *extra):
            self._order(member, generation, None, self.cause)

    def order_out(self, member: Grant) -> None:
        """Order one node that leaves the job to run no ranks, whatever generation the others are at."""
        self._order(member, self.state.generation + 1, None, self.cause)

    def _order(self, member: Grant, generation: int, placement: Placement | None, cause: str) -> None:
        incident = self.state.incident
        self._orders.append(
            NodeDesired(
                node=member.node,
                epoch=member.epoch,
                generation=generation,
                job=self.state.job,
                placement=placement,
                cause=cause,
                incident=incident.id if incident else None,
            )
        )

    def await_(self, what: str, limit_s: float) -> None:
        """Expect something by now + `limit_s`."""
        until = datetime.fromtimestamp(self.now.timestamp() + limit_s, tz=self.now.tzinfo)
        self.state = self.state.update(awaiting=Await(what=what, since=self.now, until=until))

    def close_incident(self, outcome: str, reason: str) -> None:
        """End the open incident, if there is one."""
        incident = self.state.incident
        if incident is None:
            return
        self.say(IncidentClosed, outcome=outcome, attempts=incident.attempts, reason=reason)
        self._closed.append(incident)
        self.state = self.state.update(incident=None)

    def outcome(self) -> Outcome:
        """What was collected."""
        return Outcome(
            state=self.state,
            events=tuple(self._events),
            orders=tuple(self._orders),
            closed=tuple(self._closed),
        )
