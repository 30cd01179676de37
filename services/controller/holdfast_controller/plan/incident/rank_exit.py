"""The decision after a rank of a training job has ended badly."""

from __future__ import annotations

from holdfast.engines.crash import Diagnosis
from holdfast.events import ProcessExited
from holdfast.symptoms import Root, Symptom
from holdfast_controller.plan.draft import JobDraft
from holdfast_controller.plan.evidence.conclusion import conclude
from holdfast_controller.plan.evidence.joined import joined_cause
from holdfast_controller.plan.evidence.rank_exits import of_generation, rank_exit, with_exit
from holdfast_controller.plan.incident.classify import (
    OF_USER_CODE,
    classify,
    describe_exit,
    diagnose,
    finer_name,
    has_no_directory,
    is_superseded,
    lacks_steps,
    signature,
)
from holdfast_controller.plan.incident.closing import passed_step
from holdfast_controller.plan.incident.incident import Cause, Failure, Proof, RankError
from holdfast_controller.plan.incident.recovery import (
    asks_for_others,
    handle_failure,
    handle_late_failure,
    is_of_incident,
)
from holdfast_controller.plan.job import JobState
from holdfast_controller.plan.phase import LIVE, Stopping

RANKS_SHOWN = 8


def rank_exited(draft: JobDraft, event: ProcessExited) -> None:
    """Handle the end of a rank: open an incident or add to the open one, unless another event explains the end."""
    state = draft.state
    if isinstance(state.phase, Stopping) or event.generation is None or event.generation > state.generation:
        return
    is_present = event.generation == state.generation
    if not is_present and is_superseded(event):
        # It ended because the restart worked, and late because it was cut off: neither its end nor its step shows
        # anything about the failure. In the present generation it does: what is newer there was never ordered.
        return
    if state.incident and event.generation in state.incident.untrained:
        return
    if is_present and not asks_for_others(draft, event.generation):
        # Its last step may be the first report that the job has trained past the step at which it had failed.
        passed_step(draft, event.step)
    if not is_present and not is_of_incident(draft.state, event.generation):
        # It is of before the incident, or of a generation that the database forgot and that a node reports again.
        return
    failure = _failure(draft, event, event.generation)
    if is_present and event.node in state.nodes and isinstance(state.phase, LIVE):
        handle_failure(draft, failure)
    elif draft.state.incident:
        handle_late_failure(draft, failure)


def reconsider(draft: JobDraft, node: str) -> None:
    """Judge the failure of the open incident again, since an alert reported more about one of its nodes."""
    state = draft.state
    if not any(one.node == node for one in state.exits) or state.incident is None:
        return
    generation = state.exits[0].generation
    cause = _joined(draft, generation)
    known = state.incident.cause
    conclude(draft, cause)
    if cause is None or cause.proof is not Proof.PROVEN or cause.node != node or (known and known.proof is cause.proof):
        return
    culprit = next(one for one in state.exits if one.node == node)
    failure = Failure(
        symptom=Symptom.INFRASTRUCTURE_ERROR,
        named=str(cause.symptom),
        root=cause.root,
        generation=generation,
        step=state.incident.failed_step,
        text=state.incident.summary,
        node=node,
        rank=culprit.rank if cause.rank is None else cause.rank,
        evidence=cause.events,
        cause=cause,
    )
    handle_late_failure(draft, failure)


def _failure(draft: JobDraft, event: ProcessExited, generation: int) -> Failure:
    """Note how the rank ended; return the failure, by all evidence about its generation."""
    diagnosis = diagnose(event)
    exits = draft.state.exits
    if event.node is not None:
        exits = with_exit(exits, rank_exit(event, diagnosis, draft.rules.ladder))
    is_new = exits != draft.state.exits
    draft.update(exits=exits)
    state = draft.state
    known = state.incident.cause if state.incident else None
    cause = _joined(draft, generation) if is_new else known
    symptom = classify(event, alone=state.spec.nnodes * state.spec.nproc_per_node == 1)
    # Where a node is blamed already, ranks may have lost that one.
    is_blamed = state.incident is not None and bool(state.incident.blamed)
    finished = _finished_before(state, event) if symptom is Symptom.PEER_LOST and not is_blamed else ""
    if finished:
        symptom = Symptom.EXIT_CODE
    is_about_this = cause is not None and cause.node == event.node and cause.rank in (event.rank, None)
    if is_about_this and cause and cause.proof and symptom in OF_USER_CODE:
        symptom = Symptom.INFRASTRUCTURE_ERROR
    if is_about_this and cause and cause.proof is Proof.PROVEN and symptom is Symptom.SERVICE_ELSEWHERE:
        # The machine itself has a broken disk.
        symptom = Symptom.INFRASTRUCTURE_ERROR
    error = RankError(
        generation=generation,
        signature="exit code 0 while others train" if finished else signature(event),
        step=_step_of_error(state, event),
        on_first_step=event.steps_done == 0,
        traceback=event.exception.traceback if event.exception else event.log_tail,
        exit_code=event.exit_code or 1,
        node=event.node or "",
    )
    return Failure(
        symptom=symptom,
        named=_name(symptom, diagnosis, cause if is_about_this else None),
        root=Root.USER_CODE if finished else cause.root if is_about_this and cause else diagnosis.root,
        generation=generation,
        step=_last_step(state, event, generation),
        text=f"{finished}, and {describe_exit(event)}" if finished else describe_exit(event),
        node=event.node,
        rank=event.rank,
        evidence=(event.id,),
        error=error,
        cause=cause,
        is_early_end=bool(finished),
        lacks_steps=lacks_steps(event),
        has_no_directory=has_no_directory(event),
        may_be_outage=symptom is Symptom.RANKS_VANISHED and event.agent_was_away,
    )


def _finished_before(state: JobState, event: ProcessExited) -> str:
    """Return a sentence about ranks that had ended with exit code 0 when this one lost its partner; "" if none had.

    Nothing broke then: the script ends earlier on some ranks than on others.
    """
    while_others = "ended with exit code 0 while others still trained"
    if event.finished_ranks:
        ranks = ", ".join(map(str, event.finished_ranks[:RANKS_SHOWN]))
        return f"rank {ranks} on {event.node} {while_others}"
    phase = state.phase
    if not isinstance(phase, LIVE) or event.generation != state.generation or not phase.finished:
        return ""
    nodes = [node for node in state.nodes if node in phase.finished]
    return f"the ranks on {', '.join(nodes[:RANKS_SHOWN])} {while_others}"


def _step_of_error(state: JobState, event: ProcessExited) -> int:
    """Return the last step before the error, in the script's numbers.

    A rank that has made no step since it restored one counts that from 0, where most scripts count from 1: without this
    the same error would be at another step the second time.
    """
    is_restored = event.steps_done == 0 and event.step >= 0 and event.step == state.step - 1
    return state.step if is_restored else event.step


def _last_step(state: JobState, event: ProcessExited, generation: int) -> int:
    """Return the last step before the failure. A rank that trained on without the one that ended first, as until they
    next average their weights, adds none: the job as a whole did not make those steps.
    """
    has_ended_before = any(one.has_stepped and one.rank != event.rank for one in of_generation(state.exits, generation))
    return state.step if has_ended_before else max(event.step, state.step)


def _joined(draft: JobDraft, generation: int) -> Cause | None:
    return joined_cause(draft.state, generation, alerts_act=draft.rules.mechanisms.inspections == "act")


def _name(symptom: Symptom, own: Diagnosis, joined: Cause | None) -> str:
    if joined is None or joined.symptom is Symptom.USER_CODE_ERROR or symptom is Symptom.PEER_LOST:
        return finer_name(symptom, own)
    return str(joined.symptom)
