"""The decision after a rank of a training job has ended badly."""

from __future__ import annotations

from holdfast.events import ProcessExited
from holdfast.symptoms import Symptom
from holdfast_controller.plan.draft import JobDraft
from holdfast_controller.plan.incident.classify import (
    classify,
    describe_exit,
    diagnose,
    finer_name,
    is_superseded,
    signature,
)
from holdfast_controller.plan.incident.closing import passed_step
from holdfast_controller.plan.incident.incident import Failure, RankError
from holdfast_controller.plan.incident.recovery import handle_failure, handle_late_failure
from holdfast_controller.plan.job import JobState
from holdfast_controller.plan.phase import LIVE, Stopping


def rank_exited(draft: JobDraft, event: ProcessExited) -> None:
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
    if is_present:
        # Its last step may be the first report that the job has trained past the step at which it had failed.
        passed_step(draft, event.step)
    failure = _failure(draft.state, event, event.generation)
    if is_present and event.node in state.nodes and isinstance(state.phase, LIVE):
        handle_failure(draft, failure)
    elif draft.state.incident:
        handle_late_failure(draft, failure)


def _failure(state: JobState, event: ProcessExited, generation: int) -> Failure:
    symptom = classify(event, alone=state.spec.nnodes * state.spec.nproc_per_node == 1)
    diagnosis = diagnose(event)
    error = RankError(
        generation=generation,
        signature=signature(event),
        step=event.step,
        on_first_step=event.steps_done == 0,
        traceback=event.exception.traceback if event.exception else event.log_tail,
        exit_code=event.exit_code or 1,
    )
    return Failure(
        symptom=symptom,
        named=finer_name(symptom, diagnosis),
        root=diagnosis.root,
        generation=generation,
        step=max(event.step, state.step),
        text=describe_exit(event),
        node=event.node,
        rank=event.rank,
        evidence=(event.id,),
        error=error,
        may_be_outage=symptom is Symptom.RANKS_VANISHED and event.agent_was_away,
    )
