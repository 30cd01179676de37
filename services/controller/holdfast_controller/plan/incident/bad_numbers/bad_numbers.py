"""The decisions about bad numbers, and about certified steps (ADR 10).

Whichever rung `ladder.choose` selects, the job restores a certified step afterwards.
"""

from __future__ import annotations

from holdfast.events import BadNumber, StepsCertified, Withheld
from holdfast.symptoms import Symptom
from holdfast.topology import DATA_PARALLEL
from holdfast_controller.plan.code import updates
from holdfast_controller.plan.draft import JobDraft
from holdfast_controller.plan.incident.bad_numbers import recurring
from holdfast_controller.plan.incident.bad_numbers.bad_number_rungs import EXCHANGED_TOGETHER_MAX
from holdfast_controller.plan.incident.incident import BadStep, Failure
from holdfast_controller.plan.incident.recovery import handle_failure, handle_late_failure
from holdfast_controller.plan.job import JobState
from holdfast_controller.plan.phase import LIVE, Running, Stopping


def bad_number(draft: JobDraft, event: BadNumber) -> None:
    """Go back to a certified step: at once, or with the next start if the ranks do not train now."""
    state = draft.state
    if isinstance(state.phase, Stopping) or event.generation is None or event.generation > state.trained_generation:
        return
    failure = _failure(state, event, recurring.describe(draft))
    if draft.rules.mechanisms.bad_numbers == "observe":
        draft.emit(Withheld, mechanism="bad_numbers", rung="", node=failure.node, reason=failure.text)
        return
    if event.generation < state.trained_generation:
        # The present generation may be sound: if it is not, its own numbers will show that.
        if state.incident and event.certified is not None:
            handle_late_failure(draft, failure)
        return
    if event.certified is not None:
        limits = [event.certified] if state.is_past_limit else [event.certified, state.restore_at_most]
        draft.state = state.update(
            next_restore_at_most=min(limit for limit in limits if limit is not None), is_past_limit=False
        )
    if isinstance(state.phase, LIVE):
        handle_failure(draft, failure)
    elif state.incident:
        handle_late_failure(draft, failure)


def steps_certified(draft: JobDraft, event: StepsCertified) -> None:
    """Close an incident of bad numbers once a certified step is past the step that the job had reached."""
    incident = draft.state.incident
    if incident is None or not incident.bad_steps or not isinstance(draft.state.phase, Running):
        return
    if event.generation == draft.state.generation and event.step >= incident.failed_step:
        draft.close_incident(
            "recovered", f"step {event.step} is certified, past step {incident.failed_step} which the job had reached"
        )
        recurring.note(draft, incident)
        updates.note_recovery(draft, incident)


def _failure(state: JobState, event: BadNumber, past: str) -> Failure:
    # What other nodes have as well was reduced, or came of spoiled weights: who reports it first shows nothing.
    # Of an earlier generation other nodes may have been part.
    is_present = event.generation == state.trained_generation
    node = _node_of(state, event) if event.elsewhere == "sound" and is_present else None
    few = len(state.nodes) <= EXCHANGED_TOGETHER_MAX and is_present
    return Failure(
        symptom=Symptom.JUMP if event.kind == "jump" else Symptom.NAN,
        generation=event.generation or 0,
        step=max(event.step, state.step),
        text=f"{_describe(event)}; {past}" if past else _describe(event),
        node=node,
        rank=event.rank if node else None,
        evidence=(event.id,),
        bad_step=BadStep(
            generation=event.generation or 0,
            step=event.step,
            certified=event.certified,
            node=node,
            members=tuple(state.nodes) if few else (),
        ),
    )


def _node_of(state: JobState, event: BadNumber) -> str | None:
    if event.rank is None or event.rank >= state.spec.nnodes * state.spec.nproc_per_node:
        return None
    if _is_of_several_nodes(state, event.rank):
        # Any of them may have spoiled it, and a replay finds which.
        return None
    member = state.members[event.rank // state.spec.nproc_per_node]
    return member.node if member else None


def _describe(event: BadNumber) -> str:
    what = event.quantity.replace("_", " ")
    is_shared = event.elsewhere == "bad"
    owner = f" of rank {event.rank}" if event.rank is not None and not is_shared else ""
    by = f" ({event.tag} at {event.logged_step} of a {event.told_by} log)" if event.told_by else ""
    where = {"bad": " on several nodes", "sound": " and on no other node"}.get(event.elsewhere, "")
    if event.kind == "jump" and event.value is not None and event.level is not None:
        change = f"rose from a level of {event.level:g} to {event.value:g}"
        return f"the {what}{owner} {change} at step {event.step}{by}{where}"
    return f"the {what}{owner} is {event.kind} at step {event.step}{by}{where}"


def _is_of_several_nodes(state: JobState, rank: int) -> bool:
    """Return True if several nodes made a rank's loss, and those with a sound one may be of other replicas."""
    topology = state.spec.topology()
    mesh, where = topology.mesh, topology.mesh.coordinates(rank)
    model = [dim for dim in mesh.names if dim not in DATA_PARALLEL]
    first = mesh.rank(where | dict.fromkeys(model, 0))
    last = mesh.rank(where | {dim: mesh.size(dim) - 1 for dim in model})
    has_replicas = any(mesh.size(dim) > 1 for dim in mesh.names if dim in DATA_PARALLEL)
    return has_replicas and topology.node_rank_of(first) != topology.node_rank_of(last)
