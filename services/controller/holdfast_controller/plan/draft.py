"""What a decision leads to, while it is being made: the next state, events to say and orders to nodes."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec

from holdfast.code.manifest import Manifest
from holdfast.engines.checks.checks_program import are_checks, time_limit_s
from holdfast.engines.checks.references import NO_REFERENCES, Reference, References
from holdfast.events import (
    ChecksStarted,
    Event,
    GenerationStarted,
    IncidentClosed,
    JobFinished,
    JobStopping,
    NodesReleased,
    NodesRequested,
    ReplayStarted,
    Suspension,
)
from holdfast.events.parts.job import Grant
from holdfast.ids import derived_id
from holdfast.orders.node import NodeOrder
from holdfast.settings.timeouts import Timeouts
from holdfast_controller.plan.code.code_change import bring_in
from holdfast_controller.plan.incident.incident import Failure, Incident
from holdfast_controller.plan.job import Await, Checks, Ending, JobPhase, JobState, Replay
from holdfast_controller.plan.orders import leaving_order, standing_orders

SOURCE = "controller"
NO_MANIFESTS: Mapping[str, Manifest] = MappingProxyType({})
E = TypeVar("E", bound=Event)


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """A decision: the job's next state, what is said, and what nodes shall run. The reasons stand in the events.

    `closed` is the incident that ended with this decision, `learned` are answers of tests that machines agreed on;
    `refusal` says why a request was not accepted.
    """

    state: JobState | None
    events: tuple[Event, ...] = ()
    orders: tuple[NodeOrder, ...] = ()
    closed: tuple[Incident, ...] = ()
    learned: tuple[Reference, ...] = ()
    refusal: str = ""


class Draft:
    """Collects an outcome. Everything it says is derived from the cause, so that repeating it repeats the ids.

    `manifests` are those of the code versions that are held, `references` the answers of tests that are known.
    """

    def __init__(
        self,
        state: JobState,
        cause: str,
        now: datetime,
        timeouts: Timeouts,
        manifests: Mapping[str, Manifest] = NO_MANIFESTS,
        references: References = NO_REFERENCES,
    ) -> None:
        self.state = state
        self.cause = cause
        self.now = now
        self.timeouts = timeouts
        self.manifests = manifests
        self.references = references
        self.learned: tuple[Reference, ...] = ()
        self._events: list[Event] = []
        self._orders: list[NodeOrder] = []
        self._closed: list[Incident] = []

    def say(self, kind: type[E], **fields: Any) -> E:
        """Add an event of this job, caused by what is being handled."""
        incident = self.state.incident
        fields.setdefault("incident", incident.id if incident else None)
        event = kind(
            id=derived_id(self.cause, kind.__name__, nth=len(self._events)),
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

    def order_start(self, restart_reason: str) -> None:
        """Begin the next generation on all members.

        The ranks themselves choose the newest complete checkpoint: the catalogue's word may be older than the disk. A
        limit holds until a generation under it has trained past it. Code that waits for a restart comes with this one.
        """
        bring_in(self, restart_reason)
        state = self.state
        limit = state.next_limit
        incident = state.incident
        if incident:
            # Many nodes lost at once are answered by one restart: restarts are what an incident has a limit of.
            incident = msgspec.structs.replace(incident, attempts=incident.attempts + 1)
        self.state = state.become(
            JobPhase.STARTING,
            incident=incident,
            generation=state.generation + 1,
            started=frozenset(),
            stepped=frozenset(),
            finished=frozenset(),
            gone=frozenset(),
            suspended=False,
            checks=None,
            replay=None,
            awaiting=None,
            restore_at_most=limit,
            next_restore_at_most=None,
            is_past_limit=False,
            restorable_step=_at_most(state.restorable_step, limit),
        )
        decision = self.say(
            GenerationStarted,
            reason=restart_reason,
            nodes=self.state.nodes,
            world_size=state.spec.nnodes * state.spec.nproc_per_node,
            restore_step=self.state.restorable_step,
            restore_at_most=limit,
            nproc_per_node=state.spec.nproc_per_node,
            persist_every=state.spec.persist_every,
            mesh=state.spec.mesh,
            submitted_at=state.submitted_at,
            vaults=tuple(_vault(member) for member in self.state.members if member),
            purpose="checks" if are_checks(state.spec) else "train",
            code_version=state.code.version,
        )
        self.state = self.state.update(ordered_by=decision.id)
        self._orders.extend(standing_orders(self.state))

    def order_checks(self, failure: Failure, suite: str, reason: str) -> None:
        """Stop the ranks, and run tests of the members in their place; this uses up a generation number."""
        limit_s = self.timeouts.checks_s
        generation = self.state.generation + 1
        checks = Checks(suite=suite, began_at=self.now, failure=failure)
        self.state = self._aside(generation).become(
            JobPhase.CHECKING, generation=generation, checks=checks, suspended=False, gone=frozenset()
        )
        decision = self.say(ChecksStarted, suite=suite, nodes=self.state.nodes, deadline_s=limit_s, reason=reason)
        self.state = self.state.update(ordered_by=decision.id)
        self._orders.extend(standing_orders(self.state))
        self.await_("checks_done", limit_s)

    def order_pause(self, failed_generation: int, pause_s: float, reason: str) -> None:
        """Stop the ranks; after a while they are to start again on the same nodes. This uses up a generation number."""
        incident = self.state.incident
        assert incident is not None
        incident = msgspec.structs.replace(incident, paused=(*incident.paused, failed_generation))
        self.state = self.state.become(JobPhase.WAITING, incident=incident, checks=None, replay=None, awaiting=None)
        decision = self.say(Suspension, pause_s=pause_s, reason=f"trying again in {pause_s:g} s: {reason}")
        self.order_idle(decision.id, suspended=True)
        self.await_("pause", pause_s)

    def order_replay(self, replay: Replay, reason: str, *, repeat: bool = False) -> None:
        """Stop what runs, and have each group of a phase train again; this uses up a generation number."""
        limit_s = self.timeouts.replay_s
        generation = self.state.generation + 1
        self.state = self._aside(generation).become(
            JobPhase.REPLAYING, generation=generation, replay=replay, checks=None, suspended=False, gone=frozenset()
        )
        nodes, plan = self.state.nodes, replay.plan
        groups = (plan.members(group, replay.phase) for group in range(plan.groups))
        decision = self.say(
            ReplayStarted,
            phase=replay.phase,
            groups=tuple(tuple(nodes[machine] for machine in group) for group in groups),
            mesh=plan.mesh,
            until_step=replay.settings.until,
            deadline_s=limit_s,
            repeat=repeat,
            reason=reason,
        )
        self.state = self.state.update(ordered_by=decision.id)
        self._orders.extend(standing_orders(self.state))
        self.await_("replay_done", limit_s)

    def _aside(self, generation: int) -> JobState:
        """The job once this generation is known to be no training: how its ranks end is held against nobody."""
        incident = self.state.incident
        if incident is None:
            return self.state
        return self.state.update(
            incident=msgspec.structs.replace(incident, untrained=incident.untrained | {generation})
        )

    def order_idle(self, ordered_by: str | None = None, **changes: object) -> None:
        """Order all members to run no ranks; this uses up a generation number."""
        self.state = self.state.update(
            generation=self.state.generation + 1, ordered_by=ordered_by or self.cause, **changes
        )
        self._orders.extend(standing_orders(self.state))

    def claim(self, reason: str) -> None:
        """Ask for as many nodes as are missing; a newer claim replaces an older one."""
        spec, retest = self.state.spec, self.state.retest
        claim = self.say(
            NodesRequested,
            at=self._after_last_claim(),
            count=self.state.vacancies,
            only=tuple(node for node in spec.only_nodes if node not in self.state.nodes),
            witnesses=retest.witnesses_missing(self.state.nodes) if retest else 0,
            purpose="checks" if are_checks(spec) else "train",
            reason=reason,
        )
        self.state = self.state.update(claim=claim.id, claimed_at=claim.at)

    def release(self, held: tuple[Grant, ...], reason: str, *, withdraws_claim: bool = False) -> None:
        """Give nodes back; at the end of the job also withdraw what is still claimed."""
        self.say(
            NodesReleased,
            at=self._after_last_claim() if withdraws_claim else self.now,
            nodes=tuple(grant.node for grant in held),
            epochs=tuple(grant.epoch for grant in held),
            withdraws_claim=withdraws_claim,
            reason=reason,
        )
        if withdraws_claim:
            self.state = self.state.update(claim=None)

    def _after_last_claim(self) -> datetime:
        # The standby service tells by the time which claim is the newer one, even if a clock was set back.
        last = self.state.claimed_at
        return self.now if last is None else max(self.now, last + timedelta(microseconds=1))

    def release_all(self, reason: str) -> None:
        """The job is over: give all nodes back."""
        held = tuple(member for member in self.state.members if member)
        self.release(held, reason, withdraws_claim=True)

    def vacate(self, node: str) -> None:
        """Take a node out of the job; it is told to run nothing, should it still hear."""
        member = self.state.member(node)
        if member:
            self._orders.append(leaving_order(self.state.update(ordered_by=self.cause), member))
        members = tuple(None if held is member else held for held in self.state.members)
        self.state = self.state.become(JobPhase.CLAIMING, members=members, checks=None, replay=None, awaiting=None)

    def end(self, ending: Ending) -> None:
        """Stop all ranks, for good; the job is over once every node says that they are gone."""
        self.say(JobStopping, reason=ending.reason)
        self.state = self.state.become(JobPhase.STOPPING, ending=ending, checks=None, replay=None, gone=frozenset())
        self.order_idle()
        self.await_("ranks_stopped", self.timeouts.start_s)
        self.close_when_gone()

    def complete(self, reason: str) -> None:
        """Every rank has ended by itself: the job is over."""
        self.order_idle(suspended=True)
        self.state = self.state.become(JobPhase.COMPLETED, awaiting=None, ended_at=self.now)
        self.say(JobFinished, outcome="completed", exit_code=0, reason=reason)
        self.release_all("the job completed")

    def close_when_gone(self) -> None:
        """Finish a stopping job once no node runs any of its ranks."""
        if self.state.gone >= set(self.state.nodes):
            self.close()

    def close(self) -> None:
        """Finish a stopping job."""
        ending = self.state.ending
        assert ending is not None
        incident = self.state.incident
        self.close_incident(ending.phase, ending.reason)
        self.state = self.state.become(ending.phase, awaiting=None, ended_at=self.now)
        self.say(
            JobFinished,
            outcome=ending.phase,
            exit_code=ending.exit_code,
            reason=ending.reason,
            traceback=ending.traceback,
            incident=incident.id if incident else None,
        )
        self.release_all(f"the job is {ending.phase}")

    def went_past(self, step: int) -> None:
        """The job has done this step: its limit may be behind it, and the step at which it had failed."""
        if self.state.phase is not JobPhase.RUNNING:
            return
        limit = self.state.restore_at_most
        if limit is not None and step > limit:
            # All ranks have cut what is newer than the limit: what is there now was made since.
            self.state = self.state.update(is_past_limit=True)
        incident = self.state.incident
        if incident and not incident.spoiled and step > incident.failed_step:
            self.close_incident(
                "recovered", f"step {step} is done, past step {incident.failed_step} where the job had failed"
            )

    def close_when_settled(self, settled_s: float) -> None:
        """Close the incident of a script whose steps tell no place to get past once it has trained for long enough."""
        state, incident = self.state, self.state.incident
        if incident is None or incident.spoiled or state.is_numbered or state.running_since is None:
            return
        trained_s = (self.now - state.running_since).total_seconds()
        if trained_s >= settled_s:
            self.close_incident(
                "recovered", f"it trains for {trained_s:.0f} s again; its steps are counted anew in each generation"
            )
            self.state = self.state.update(settled=incident)

    def supersede(self, order: NodeOrder, forged: tuple[int, int]) -> None:
        """Repeat an order in a form that takes the place of one that was never given."""
        self._orders.append(msgspec.structs.replace(order, supersedes=forged))

    def await_(self, what: str, limit_s: float) -> None:
        """Expect something by now + `limit_s`."""
        until = datetime.fromtimestamp(self.now.timestamp() + limit_s, tz=self.now.tzinfo)
        self.state = self.state.update(awaiting=Await(what=what, since=self.now, until=until))

    def await_first_step_if_started(self) -> None:
        """Once the ranks of every node run, their first step is expected; of checks, their end."""
        state = self.state
        if state.phase is not JobPhase.STARTING or not state.started >= set(state.nodes):
            return
        limit_s = self.timeouts.first_step_limit_s(state.step_s, state.first_step_s)
        self.await_("first_step", time_limit_s(state.spec) if are_checks(state.spec) else limit_s)
        self.state = self.state.update(started_at=self.now)

    def close_incident(self, outcome: str, reason: str) -> None:
        """End the open incident, if there is one."""
        incident = self.state.incident
        if incident is None:
            return
        self.say(
            IncidentClosed,
            outcome=outcome,
            attempts=incident.attempts,
            reason=reason,
            symptom=incident.shown_as,
            summary=incident.summary,
        )
        self._closed.append(incident)
        self.state = self.state.update(incident=None, settled=None)

    def outcome(self) -> Outcome:
        """What was collected."""
        return Outcome(
            state=self.state,
            events=tuple(self._events),
            orders=tuple(self._orders),
            closed=tuple(self._closed),
            learned=self.learned,
        )


def _vault(member: Grant) -> str:
    return f"{member.address}:{member.vault_port}" if member.vault_port else ""


def _at_most(step: int | None, limit: int | None) -> int | None:
    return None if step is not None and limit is not None and step > limit else step
