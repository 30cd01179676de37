"""What follows from the end of a rank, and from what an inspection has found on a node. Pure."""

from __future__ import annotations

from holdfast.events import Inspection, ProcessExited, Withheld
from holdfast_controller.plan.checks import checks, replays
from holdfast_controller.plan.draft import Draft
from holdfast_controller.plan.incident import alerts
from holdfast_controller.plan.incident.classify import (
    classify,
    diagnosed,
    in_words,
    is_superseded,
    named,
    signature,
)
from holdfast_controller.plan.incident.incident import Failure, RankError, Rung
from holdfast_controller.plan.incident.ladder import INSPECTIONS, Choice
from holdfast_controller.plan.incident.recovery import Rules, failed, learned_late, may_evict
from holdfast_controller.plan.job import LIVE, JobPhase


def exited(draft: Draft, event: ProcessExited, rules: Rules) -> None:
    """A rank has ended badly, of this generation or of an earlier one."""
    state = draft.state
    if state.phase is JobPhase.STOPPING or event.generation is None or event.generation > state.generation:
        return
    if event.generation < state.generation and is_superseded(event):
        # It ended because the restart worked, and as late as it was cut off: neither its end nor its step says
        # anything of the failure. Of the present generation it does: what is newer there was never ordered.
        return
    if state.phase is JobPhase.CHECKING and event.generation == state.generation:
        checks.broke_off(draft, event, rules)
        return
    if state.phase is JobPhase.REPLAYING and event.generation == state.generation:
        replays.broke_off(draft, event, rules)
        return
    if state.incident and event.generation in state.incident.untrained:
        return
    if event.generation == state.generation:
        # Its last step may be the first word of how far the job has come, past where it had failed before.
        draft.went_past(event.step)
        state = draft.state
    symptom = classify(event, alone=state.spec.nnodes * state.spec.nproc_per_node == 1)
    diagnosis = diagnosed(event)
    error = RankError(
        generation=event.generation,
        signature=signature(event),
        step=event.step,
        on_first_step=event.steps_done == 0,
        traceback=event.exception.traceback if event.exception else event.log_tail,
        exit_code=event.exit_code or 1,
    )
    failure = Failure(
        symptom=symptom,
        named=named(symptom, diagnosis),
        root=diagnosis.root,
        generation=event.generation,
        step=max(event.step, state.step),
        text=in_words(event),
        node=event.node,
        rank=event.rank,
        evidence=(event.id,),
        error=error,
    )
    if event.generation == state.generation and event.node in state.nodes and state.phase in LIVE:
        failed(draft, failure, rules)
    elif state.incident:
        learned_late(draft, failure, rules)


def inspected(draft: Draft, event: Inspection, rules: Rules) -> None:
    """A check of a node beside training: what names the machine evicts it, whether its ranks noticed or not."""
    if draft.state.phase is JobPhase.STOPPING or event.node not in draft.state.nodes:
        return
    draft.state = alerts.noted(draft.state, event, draft.now, rules.ladder)
    failure = alerts.failure(draft.state, event, draft.now, rules.ladder)
    if failure is None:
        return
    if rules.mechanisms.inspections == "observe":
        draft.say(Withheld, mechanism=INSPECTIONS, rung=Rung.EVICT, node=event.node, reason=failure.text)
        return
    choice = Choice(rung=Rung.EVICT, reason=failure.text, nodes=(event.node,), mechanism=INSPECTIONS)
    if may_evict(draft, choice, rules.ladder):
        failed(draft, failure, rules)
