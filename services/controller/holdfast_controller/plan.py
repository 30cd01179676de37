"""The controller's decisions: what follows for a job from an event, a request or the passing of time.

Everything here is pure: the same state, input and time give the same outcome, to the letter.
Silence is never taken for good health, and never for recovery: a job comes back only by ranks that say so.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from holdfast.events import (
    AnyEvent,
    DeadlinePassed,
    Event,
    Eviction,
    FirstStep,
    IncidentOpened,
    JobFinished,
    JobStopping,
    JobSubmitted,
    NodeDeparted,
    NodeLost,
    NodesAwaited,
    NodesGranted,
    NodesReleased,
    NodesRequested,
    ProcessExited,
    Progress,
    RanksFinished,
    RanksStarted,
    RanksStopped,
    Reattempt,
    StepRestorable,
    StepTimeMeasured,
    Suspension,
)
from holdfast.ids import derived_id
from holdfast.requests import StopJob, SubmitJob
from holdfast.timeouts import Timeouts
from holdfast_controller.classify import OF_USER_CODE, classify, in_words
from holdfast_controller.draft import Draft, Outcome
from holdfast_controller.ladder import Failure, Policy, Rung, blame, choose
from holdfast_controller.state import OVER, Ending, Incident, JobPhase, JobState, Symptom, UserError

STEP_RECORD_S = 10.0
"""While nothing is wrong, the controller notes a job's step at most this often."""

_LIVE = (JobPhase.STARTING, JobPhase.RUNNING)


class Planner:
    """The decisions under one set of limits; holds no state of its own."""

    def __init__(self, timeouts: Timeouts, policy: Policy) -> None:
        self.timeouts = timeouts
        self.policy = policy

    # --- requests of people ---------------------------------------------------------------------

    def submit(self, state: JobState | None, request: SubmitJob, now: datetime) -> Outcome:
        """A person asks for a job."""
        spec = request.spec
        if state is not None:
            return Outcome(state=state, refusal=f"a job named {spec.name} exists already; choose another --name")
        draft = Draft(
            JobState(spec=spec, phase=JobPhase.CLAIMING, submitted_at=now, members=(None,) * spec.nnodes),
            request.id,
            now,
        )
        draft.say(JobSubmitted, spec=spec, reason=f"asked by {request.asked_by}")
        self._claim(draft, "the job needs nodes to start")
        return draft.outcome()

    def stop(self, state: JobState | None, request: StopJob, now: datetime) -> Outcome:
        """A person asks for a job's end."""
        if state is None:
            return Outcome(state=None, refusal=f"there is no job named {request.job}; `holdfast jobs` lists them")
        if state.phase in OVER:
            return Outcome(state=state, refusal=f"job {request.job} is over already: {state.phase}")
        draft = Draft(state, request.id, now)
        reason = f"asked by {request.asked_by}"
        if state.phase is not JobPhase.STOPPING:
            self._end(draft, Ending(phase=JobPhase.STOPPED, reason=reason, exit_code=143))
        return draft.outcome()

    # --- events ---------------------------------------------------------------------------------

    def event(self, state: JobState, event: AnyEvent, now: datetime) -> Outcome:
        """What follows from an event that concerns this job."""
        draft = Draft(state, event.id, now)
        if state.phase in OVER:
            if isinstance(event, NodesGranted):
                self._release(draft, tuple(grant.node for grant in event.grants), "the job is over")
            return draft.outcome()
        match event:
            case NodesGranted():
                self._granted(draft, event)
            case NodesAwaited():
                self._awaited(draft, event)
            case RanksStarted():
                self._started(draft, event)
            case FirstStep():
                self._first_step(draft, event)
            case Progress():
                self._progress(draft, event)
            case RanksFinished():
                self._finished(draft, event)
            case RanksStopped():
                self._stopped(draft, event)
            case ProcessExited():
                self._exited(draft, event)
            case NodeLost() | NodeDeparted():
                self._node_gone(draft, event)
            case StepTimeMeasured():
                draft.state = draft.state.update(step_s=event.median_s)
            case StepRestorable():
                newest = max(event.step, -1 if state.restorable_step is None else state.restorable_step)
                draft.state = draft.state.update(restorable_step=newest)
            case _:
                pass
        return draft.outcome()

    def time(self, state: JobState, now: datetime) -> Outcome:
        """What follows from the time: something awaited has not come."""
        awaiting = state.awaiting
        if awaiting is None or now < awaiting.until:
            return Outcome(state=state)
        here = {
            "ranks_started": state.started,
            "first_step": state.stepped,
            "ranks_stopped": state.gone,
        }[awaiting.what]
        missing = tuple(node for node in state.nodes if node not in here)
        # The finding gets an id of its own: it is the cause of what follows, and the same however often time is asked.
        start = derived_id(_job_id(state), awaiting.what, awaiting.until.isoformat())
        draft = Draft(state.update(awaiting=None), start, now)
        waited_s = (now - awaiting.since).total_seconds()
        finding = draft.say(
            DeadlinePassed, awaited=awaiting.what, waited_s=waited_s, missing_nodes=missing, generation=state.generation
        )
        draft.cause = finding.id
        if awaiting.what == "ranks_stopped":
            self._close(draft)
        elif awaiting.what == "ranks_started" and set(missing) == set(state.nodes):
            # When nobody answers, the silence says nothing about any one node.
            text = f"no node started its ranks within {waited_s:.0f} s"
            self._failed(draft, self._failure(state, Symptom.START_TIMEOUT, text))
        elif awaiting.what == "ranks_started":
            for node in missing:
                text = f"{node} did not start its ranks within {waited_s:.0f} s"
                self._failed(draft, self._failure(state, Symptom.START_TIMEOUT, text, node))
        else:
            text = f"no first step within {waited_s:.0f} s of starting generation {state.generation}"
            self._failed(draft, self._failure(state, Symptom.NO_FIRST_STEP, text))
        return draft.outcome()

    # --- nodes ----------------------------------------------------------------------------------

    def _claim(self, draft: Draft, reason: str) -> None:
        """Ask for as many nodes as are missing; a newer claim replaces an older one."""
        claim = draft.say(NodesRequested, count=draft.state.vacancies, reason=reason)
        draft.state = draft.state.update(claim=claim.id)

    def _release(self, draft: Draft, nodes: tuple[str, ...], reason: str) -> None:
        draft.say(NodesReleased, nodes=nodes, reason=reason)
        draft.state = draft.state.update(claim=None)

    def _granted(self, draft: Draft, event: NodesGranted) -> None:
        state = draft.state
        grants = list(event.grants)
        members = []
        if state.phase is JobPhase.CLAIMING:
            for member in state.members:
                members.append(member if member or not grants else grants.pop(0))
            draft.state = state.update(members=tuple(members))
        if grants:
            surplus = tuple(grant.node for grant in grants)
            draft.say(NodesReleased, nodes=surplus, reason="more nodes were granted than are needed")
        if draft.state.phase is not JobPhase.CLAIMING or draft.state.vacancies:
            return
        draft.state = draft.state.update(claim=None)
        names = ", ".join(grant.node for grant in event.grants)
        draft.order_start(f"{names} joined; all {state.spec.nnodes} nodes are there")
        draft.await_("ranks_started", self.timeouts.start_s)

    def _awaited(self, draft: Draft, event: NodesAwaited) -> None:
        state = draft.state
        if state.phase is not JobPhase.CLAIMING or event.claim != state.claim or not state.nodes:
            return
        if state.suspended:
            return
        draft.say(Suspension, reason=f"{event.wanted} nodes are needed, {event.available} are there: waiting for more")
        draft.order_idle()
        draft.state = draft.state.update(suspended=True)

    def _node_gone(self, draft: Draft, event: NodeLost | NodeDeparted) -> None:
        state = draft.state
        if event.node not in state.nodes:
            return
        if state.phase is JobPhase.STOPPING:
            draft.state = state.update(gone=state.gone | {event.node})
            self._close_when_gone(draft)
            return
        if isinstance(event, NodeLost):
            symptom, text = Symptom.NODE_LOST, f"nothing was heard of {event.node} for {event.silent_s:.1f} s"
        else:
            symptom, text = Symptom.NODE_DEPARTED, f"the agent of {event.node} was shut down"
        self._failed(draft, self._failure(state, symptom, text, event.node))

    def _vacate(self, draft: Draft, node: str) -> None:
        """Take a node out of the job; it is told to run nothing, should it still hear."""
        for member in draft.state.members:
            if member and member.node == node:
                draft.order_out(member)
        draft.state = draft.state.become(
            JobPhase.CLAIMING,
            members=tuple(None if member and member.node == node else member for member in draft.state.members),
            awaiting=None,
        )

    # --- the life of a generation ---------------------------------------------------------------

    def _started(self, draft: Draft, event: RanksStarted) -> None:
        state = draft.state
        if event.generation != state.generation or event.node not in state.nodes or state.phase not in _LIVE:
            return
        started = state.started | {event.node}
        draft.state = state.update(started=started)
        if started >= set(state.nodes) and state.phase is JobPhase.STARTING:
            draft.await_("first_step", self.timeouts.first_step_limit_s(state.step_s))

    def _first_step(self, draft: Draft, event: FirstStep) -> None:
        state = draft.state
        if event.generation != state.generation or event.node not in state.nodes or state.phase not in _LIVE:
            return
        stepped = state.stepped | {event.node}
        draft.state = state.update(stepped=stepped, step=event.step, step_seen_at=draft.now)
        if stepped >= set(state.nodes) and state.phase is JobPhase.STARTING:
            draft.state = draft.state.become(JobPhase.RUNNING, awaiting=None)
        self._close_when_past(draft, event.step)

    def _progress(self, draft: Draft, event: Progress) -> None:
        state = draft.state
        if event.generation != state.generation or state.phase is not JobPhase.RUNNING or event.step <= state.step:
            return
        idle_s = (draft.now - state.step_seen_at).total_seconds() if state.step_seen_at else STEP_RECORD_S
        if state.incident or idle_s >= STEP_RECORD_S:
            draft.state = state.update(step=event.step, step_seen_at=draft.now)
            self._close_when_past(draft, event.step)

    def _close_when_past(self, draft: Draft, step: int) -> None:
        incident = draft.state.incident
        if incident and draft.state.phase is JobPhase.RUNNING and step > incident.failed_step:
            draft.close_incident(
                "recovered", f"step {step} is done, past step {incident.failed_step} where the job had failed"
            )

    def _finished(self, draft: Draft, event: RanksFinished) -> None:
        state = draft.state
        if state.phase is JobPhase.STOPPING and event.generation == state.generation - 1 and event.node in state.nodes:
            draft.state = state.update(gone=state.gone | {event.node})
            self._close_when_gone(draft)
            return
        if event.generation != state.generation or event.node not in state.nodes or state.phase not in _LIVE:
            return
        finished = state.finished | {event.node}
        draft.state = state.update(finished=finished)
        if finished >= set(state.nodes):
            draft.close_incident("recovered", "the job ran to its end")
            draft.order_idle()
            draft.state = draft.state.become(JobPhase.COMPLETED, awaiting=None, ended_at=draft.now)
            draft.say(JobFinished, outcome="completed", exit_code=0, reason="every rank ended with exit code 0")
            self._release(draft, draft.state.nodes, "the job completed")

    # --- failures -------------------------------------------------------------------------------

    def _exited(self, draft: Draft, event: ProcessExited) -> None:
        state = draft.state
        if state.phase is JobPhase.STOPPING or event.generation is None or event.generation > state.generation:
            return
        symptom = classify(event)
        user_error = None
        if symptom in OF_USER_CODE:
            exception = event.exception
            user_error = UserError(
                generation=event.generation,
                signature=f"{exception.type}: {exception.message}" if exception else f"exit code {event.exit_code}",
                step=event.step,
                on_first_step=event.steps_done == 0,
                traceback=exception.traceback if exception else event.log_tail,
                exit_code=event.exit_code or 1,
            )
        failure = Failure(
            symptom=symptom,
            generation=event.generation,
            step=max(event.step, state.step),
            text=in_words(event),
            node=event.node,
            rank=event.rank,
            user_error=user_error,
        )
        if event.generation == state.generation and event.node in state.nodes and state.phase in _LIVE:
            self._failed(draft, failure)
        elif state.incident:
            self._learned_late(draft, failure)

    def _failure(self, state: JobState, symptom: Symptom, text: str, node: str | None = None) -> Failure:
        return Failure(symptom=symptom, generation=state.generation, step=state.step, text=text, node=node)

    def _failed(self, draft: Draft, failure: Failure) -> None:
        """A failure of the generation that should run now: open an incident or go on with the open one, and act."""
        incident = draft.state.incident
        if incident is None:
            incident = Incident(
                id=derived_id(draft.cause, "incident"),
                opened_at=draft.now,
                symptom=failure.symptom,
                failed_step=failure.step,
                summary=failure.text,
            )
            draft.state = draft.state.update(incident=incident)
            draft.say(
                IncidentOpened,
                symptom=failure.symptom,
                failed_step=failure.step,
                node=failure.node,
                rank=failure.rank,
                reason=failure.text,
            )
        self._act(draft, failure, *self._weigh(draft, failure))

    def _learned_late(self, draft: Draft, failure: Failure) -> None:
        """Evidence of a generation already given up: it may tell who was at fault, and that going on is no use."""
        rung, reason = self._weigh(draft, failure)
        held = failure.node in draft.state.nodes
        if rung is Rung.STOP or (rung is Rung.EVICT and held):
            self._act(draft, failure, rung, reason)

    def _weigh(self, draft: Draft, failure: Failure) -> tuple[Rung, str]:
        assert draft.state.incident is not None
        incident = blame(draft.state.incident, failure)
        rung, reason = choose(incident, failure, self.policy)
        if failure.user_error:
            incident = _replace(incident, user_error=failure.user_error)
        if failure.step > incident.failed_step:
            incident = _replace(incident, failed_step=failure.step)
        if incident.symptom is Symptom.PEER_LOST and failure.symptom is not Symptom.PEER_LOST:
            incident = _replace(incident, symptom=failure.symptom, summary=failure.text)
        draft.state = draft.state.update(incident=incident)
        return rung, reason

    def _act(self, draft: Draft, failure: Failure, rung: Rung, reason: str) -> None:
        incident = draft.state.incident
        assert incident is not None
        if rung is Rung.STOP:
            error = failure.user_error
            ending = Ending(
                phase=JobPhase.FAILED,
                reason=reason,
                exit_code=error.exit_code if error else 1,
                traceback=error.traceback if error else "",
            )
            self._end(draft, ending)
            return
        draft.state = draft.state.update(incident=_replace(incident, attempts=incident.attempts + 1))
        if rung is Rung.REATTEMPT:
            draft.say(Reattempt, attempt=incident.attempts + 1, node=failure.node, reason=reason)
            draft.order_start(f"restart in place: {reason}")
            draft.await_("ranks_started", self.timeouts.start_s)
            return
        assert failure.node is not None
        if rung is Rung.EVICT:
            draft.say(Eviction, node=failure.node, blocked_for_s=self.timeouts.block_s, reason=reason)
        self._vacate(draft, failure.node)
        self._claim(draft, f"{failure.node} left the job: {reason}")

    # --- the end --------------------------------------------------------------------------------

    def _end(self, draft: Draft, ending: Ending) -> None:
        """Stop all ranks, for good; the job is over once every node says that they are gone."""
        draft.say(JobStopping, reason=ending.reason)
        gone = draft.state.gone if draft.state.suspended else frozenset()
        draft.state = draft.state.become(JobPhase.STOPPING, ending=ending, gone=gone)
        draft.order_idle()
        draft.await_("ranks_stopped", self.timeouts.start_s)
        self._close_when_gone(draft)

    def _stopped(self, draft: Draft, event: RanksStopped) -> None:
        state = draft.state
        if event.ordered_generation < state.generation or event.node not in state.nodes:
            return
        if state.phase is JobPhase.STOPPING or state.suspended:
            draft.state = state.update(gone=state.gone | {event.node})
        if state.phase is JobPhase.STOPPING:
            self._close_when_gone(draft)

    def _close_when_gone(self, draft: Draft) -> None:
        if draft.state.gone >= set(draft.state.nodes):
            self._close(draft)

    def _close(self, draft: Draft) -> None:
        ending = draft.state.ending
        assert ending is not None
        draft.close_incident(ending.phase, ending.reason)
        nodes = draft.state.nodes
        draft.state = draft.state.become(ending.phase, awaiting=None, ended_at=draft.now)
        draft.say(
            JobFinished,
            JobStopping,
            outcome=ending.phase,
            exit_code=ending.exit_code,
            reason=ending.reason,
            traceback=ending.traceback,
        )
        self._release(draft, nodes, f"the job is {ending.phase}")


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
)
"""The events that a decision can follow from."""


def _job_id(state: JobState) -> str:
    """A UUID that stands for this job at this generation, to derive ids of findings from."""
    return derived_id("00000000-0000-7000-8000-000000000000", state.job, state.submitted_at.isoformat())


def _replace(incident: Incident, **changes: object) -> Incident:
    return msgspec.structs.replace(incident, **changes)
