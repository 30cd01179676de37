"""Steps that a restart loses though they could have been restored before: reported, and kept in the incident."""

from __future__ import annotations

from holdfast.events import CheckpointRestored, FirstStep, KeepingSpaced, StepsKept, StepsLost, StepsNumbered
from holdfast_controller.plan.draft import JobDraft
from holdfast_controller.plan.job import JobState
from holdfast_controller.plan.phase import LIVE

NEVER_WHOLE_MAX = 2
"""Number of steps that a rank can be ahead of another: once the job is further than that above the first kept step, all
ranks have kept that step."""

LOSSES_MAX = 3
"""Sentences about losses that an incident keeps."""


def steps_kept(draft: JobDraft, event: StepsKept) -> None:
    """Note the first step that the job kept in memory."""
    state = draft.state
    if state.first_kept_step is None and event.generation == state.generation and isinstance(state.phase, LIVE):
        draft.update(first_kept_step=event.step, kept_for=event.kept_for)


def keeping_spaced(draft: JobDraft, event: KeepingSpaced) -> None:
    """Note how far apart the steps are that ranks keep in memory."""
    if event.generation == draft.state.generation and isinstance(draft.state.phase, LIVE):
        draft.update(kept_every=event.every)


def has_checkpoints(state: JobState) -> bool:
    """Return True if all ranks together have made a checkpoint, on the disk or only in memory."""
    return state.has_checkpoints or _has_kept(state, trained_up_to(state))


def can_resume(state: JobState) -> bool:
    """Return True if the job has shown a way to resume: checkpoints that are known, or a restart that went on."""
    return has_checkpoints(state) or state.has_resumed


def steps_to_redo(state: JobState) -> int:
    """Return the number of steps that a restart now would make once more, as far as is known."""
    reached = trained_up_to(state)
    if _has_kept(state, reached):
        return state.kept_every - 1
    if state.restorable_step is not None:
        return max(0, reached - state.restorable_step)
    return state.redone_steps


def can_resume_resized(state: JobState) -> bool:
    """Return True if the job has shown that it can go on with another number of ranks."""
    if state.has_resized:
        return True
    if state.first_kept_step is None:
        # It resumed from the script's own files, which a script for MIN to MAX nodes reads with any number of ranks.
        return state.has_resumed and not state.has_checkpoints
    if state.kept_for == "any_ranks":
        return _has_kept(state, trained_up_to(state))
    return state.kept_for == "disk_reshards" and state.has_checkpoints


def steps_to_redo_resized(state: JobState) -> int:
    """Return the number of steps that a restart with another number of ranks would make again, as far as is known."""
    reached = trained_up_to(state)
    if state.kept_for == "any_ranks" and _has_kept(state, reached):
        return state.kept_every - 1
    if state.restorable_step is not None:
        return max(0, reached - state.restorable_step)
    return state.redone_steps


def note_start(draft: JobDraft, step: int) -> None:
    """Note where a generation goes on, by its first step: that shows whether the job can resume."""
    state = draft.state
    if state.origin_step is None:
        draft.update(origin_step=step)
    else:
        redone = max(0, trained_up_to(state) - step + 1)
        has_resumed = step > state.origin_step
        draft.update(has_resumed=has_resumed, redone_steps=redone)
        if state.is_resized:
            draft.update(has_resized=has_resumed)


def note_redone(draft: JobDraft, event: FirstStep) -> None:
    """Note how much of its work a generation that was started for an incident has to do again."""
    state, incident, base = draft.state, draft.state.incident, draft.state.number_of_first
    draft.update(number_of_first=None)
    if incident is None or not state.has_stepped:
        return
    reached = state.step if incident.has_stepped else max(state.step, incident.failed_step)
    draft.update_incident(has_stepped=True, reached=reached + (base or 0))
    # Numbers of output alone are not compared with others: they begin at 0 or 1, as the script likes.
    if not event.is_start_known or state.is_start_unknown or (base or 0) > 1:
        doubt = f"how many steps were lost is unknown: {event.step_source_name or 'no number shows it'}"
        draft.update_incident(doubt=doubt, doubted=state.generation)
    else:
        _add_redone(draft, reached, event.step)


def steps_numbered(draft: JobDraft, event: StepsNumbered) -> None:
    """Note which number the script gives to its steps: it shows what this generation does again."""
    state, incident = draft.state, draft.state.incident
    if event.generation != state.generation or not isinstance(state.phase, LIVE) or state.number_of_first is not None:
        return
    draft.update(number_of_first=event.step, is_start_unknown=False)
    if incident is not None and incident.doubt and incident.doubted == state.generation:
        draft.update_incident(doubt="")
        _add_redone(draft, incident.reached, event.step)


def _add_redone(draft: JobDraft, reached: int, first: int) -> None:
    redone = max(0, reached - first + 1)
    if redone:
        draft.update_incident(redone=draft.incident.redone + redone, went_on_at=(*draft.incident.went_on_at, first))


def checkpoint_restored(draft: JobDraft, event: CheckpointRestored) -> None:
    """Report a loss if the generation goes on from a step below the newest that could be restored before."""
    state = draft.state
    if event.generation != state.generation or not isinstance(state.phase, LIVE) or not state.is_numbered:
        return
    if event.tier != "nothing" and event.step > 0:
        draft.update(has_resumed=True, has_resized=state.has_resized or state.is_resized)
        state = draft.state
    reached, every = trained_up_to(state), state.kept_every
    if every > 1:
        # A generation begins with every step; what is lost was kept by the one before.
        draft.update(kept_every=1)
    whole = max(event.whole_step, state.restorable_step or 0)
    if event.tier != "memory" and _has_kept(state, reached):
        # No memory has them any more, so no rank can name them; the newest may not have been complete.
        whole = max(whole, reached - reached % every - every)
    if event.step >= whole:
        return
    newest = max(event.newest_step, whole, reached)
    lost = newest - event.step
    nodes = _nodes_of(state, event.missing_ranks)
    text = f"{lost} steps were lost: {_start(event)}, and step {newest} had been reached; {_why(nodes)}"
    draft.emit(
        StepsLost,
        step=event.step,
        newest_step=newest,
        lost_steps=lost,
        nodes=nodes,
        reason=text,
    )
    if (incident := state.incident) is not None:
        # A second loss is measured from the same step that had been reached: it contains the first.
        draft.update_incident(lost_steps=max(incident.lost_steps, lost), losses=(*incident.losses, text)[-LOSSES_MAX:])


def trained_up_to(state: JobState) -> int:
    """Return the newest step that is known to have been trained, below the limit of this generation."""
    reached = max(state.step, state.incident.failed_step if state.incident else -1)
    limit = None if state.is_past_limit else state.restore_at_most
    return reached if limit is None else min(reached, limit)


def _has_kept(state: JobState, reached: int) -> bool:
    return state.first_kept_step is not None and reached > state.first_kept_step + NEVER_WHOLE_MAX


def _nodes_of(state: JobState, ranks: tuple[int, ...]) -> tuple[str, ...]:
    nodes = state.nodes
    node_ranks = dict.fromkeys(rank // state.spec.nproc_per_node for rank in ranks)
    return tuple(nodes[node_rank] for node_rank in node_ranks if node_rank < len(nodes))


def _start(event: CheckpointRestored) -> str:
    return "the job began from scratch" if event.tier == "nothing" else f"the job went on from step {event.step}"


def _why(nodes: tuple[str, ...]) -> str:
    if nodes:
        return f"no node had newer shards of the ranks of {', '.join(nodes)}"
    return "no newer step is whole, in memory or on disk"
