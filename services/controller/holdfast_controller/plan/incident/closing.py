"""When an incident is over: its job has trained past the step at which it failed."""

from __future__ import annotations

from holdfast_controller.plan.code import updates
from holdfast_controller.plan.draft import JobDraft
from holdfast_controller.plan.phase import Running


def passed_step(draft: JobDraft, step: int) -> None:
    """Note that the running job has done this step: its restore limit may no longer hold, its incident be over."""
    if not isinstance(draft.state.phase, Running):
        return
    limit = draft.state.restore_at_most
    if limit is not None and step > limit:
        # All ranks have cut what is newer than the limit: what is there now was made since.
        draft.update(is_past_limit=True)
    if draft.state.has_ended_ranks:
        # Its ranks end one after the other, and some were a step ahead of the first one.
        return
    settled = draft.state.settled
    if settled is not None and draft.state.is_numbered and step > settled.failed_step:
        # It is past the place that was remembered.
        draft.update(settled=None)
    incident = draft.state.incident
    if incident and not incident.bad_steps and step > incident.failed_step:
        failed = "; it had failed before the first one"
        if incident.failed_step >= 0:
            failed = f", past step {incident.failed_step} at which the job had failed"
        counted = " by this generation's count" if draft.state.is_start_unknown else ""
        draft.close_incident("recovered", f"step {step} completed{counted}{failed}")
        updates.note_recovery(draft, incident)


def close_when_settled(draft: JobDraft) -> None:
    """Close the incident of a job that has trained long enough since, without passing the step at which it had failed:
    its step numbers start again, or it went back so far that another failure on the way need not be the same."""
    state, incident = draft.state, draft.state.incident
    if incident is None or incident.bad_steps or not isinstance(state.phase, Running):
        return
    trained_s = (draft.now - state.phase.since).total_seconds()
    if trained_s >= draft.rules.ladder.settled_s:
        why = "its step numbers start again in each generation"
        if state.is_numbered:
            why = f"the way back to step {incident.failed_step}, at which it had failed, is long"
        elif state.phase.makes_no_steps:
            why = "none of its steps is seen"
        draft.close_incident("recovered", f"the job has trained for {trained_s:.0f} s since; {why}")
        draft.update(settled=incident)
        updates.note_recovery(draft, incident)
