"""What follows from bad numbers, and from word of what is clean (ADR 10). Pure.

Whatever rung `ladder.choose` takes, what is restored afterwards is a certified step.
"""

from __future__ import annotations

from holdfast.events import BadNumber, StepsCertified, Withheld
from holdfast.symptoms import Symptom
from holdfast_controller.plan.draft import JobDraft
from holdfast_controller.plan.incident.incident import Failure, Spoiled
from holdfast_controller.plan.incident.recovery import failed, learned_late
from holdfast_controller.plan.job import JobState
from holdfast_controller.plan.phase import LIVE, Running, Stopping


def bad_number(draft: JobDraft, event: BadNumber) -> None:
    """The training of a generation is spoiled: go back, or note how far back the next start must go."""
    state = draft.state
    if isinstance(state.phase, Stopping) or event.generation is None or event.generation > state.trained_generation:
        return
    failure = _failure(state, event)
    if draft.rules.mechanisms.bad_numbers == "observe":
        draft.emit(Withheld, mechanism="bad_numbers", rung="", node=failure.node, reason=failure.text)
        return
    if event.generation < state.trained_generation:
        # The present one may be sound: if it is not, its own numbers will tell.
        if state.incident and event.certified is not None:
            learned_late(draft, failure)
        return
    if event.certified is not None:
        limits = [event.certified] if state.is_past_limit else [event.certified, state.restore_at_most]
        draft.state = state.update(
            next_restore_at_most=min(limit for limit in limits if limit is not None), is_past_limit=False
        )
    if isinstance(state.phase, LIVE):
        failed(draft, failure)
    elif state.incident:
        learned_late(draft, failure)


def certified(draft: JobDraft, event: StepsCertified) -> None:
    """Up to this step all is clean: the incident of bad numbers is over once that is past where it was."""
    incident = draft.state.incident
    if incident is None or not incident.spoiled or not isinstance(draft.state.phase, Running):
        return
    if event.generation == draft.state.generation and event.step >= incident.failed_step:
        draft.close_incident(
            "recovered", f"step {event.step} is certified, past step {incident.failed_step} that the job had reached"
        )


def _failure(state: JobState, event: BadNumber) -> Failure:
    node = None
    if event.rank is not None and event.rank < state.spec.nnodes * state.spec.nproc_per_node:
        member = state.members[event.rank // state.spec.nproc_per_node]
        node = member.node if member else None
    return Failure(
        symptom=Symptom.JUMP if event.kind == "jump" else Symptom.NAN,
        generation=event.generation or 0,
        step=max(event.step, state.step),
        text=_in_words(event),
        node=node,
        rank=event.rank,
        evidence=(event.id,),
        spoiled=Spoiled(generation=event.generation or 0, step=event.step, certified=event.certified),
    )


def _in_words(event: BadNumber) -> str:
    what = event.quantity.replace("_", " ")
    whose = f" of rank {event.rank}" if event.rank is not None else ""
    by = f" ({event.tag} at {event.logged_step} of a {event.told_by} log)" if event.told_by else ""
    if event.kind == "jump" and event.value is not None and event.level is not None:
        return f"the {what}{whose} rose to {event.value:g} at step {event.step}, its level was {event.level:g}{by}"
    return f"the {what}{whose} is {event.kind} at step {event.step}{by}"
