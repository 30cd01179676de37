"""The life of one generation: its ranks start, make steps, finish or stop, and what is missing when time is over."""

from __future__ import annotations

from holdfast.engines.checks.checks_program import are_checks, time_limit_s
from holdfast.events import (
    DeadlinePassed,
    FirstStep,
    Progress,
    RanksFinished,
    RanksStarted,
    RanksStopped,
    StepRestorable,
    StepTimeMeasured,
)
from holdfast.symptoms import Symptom
from holdfast_controller.plan.code import updates
from holdfast_controller.plan.draft import JobDraft
from holdfast_controller.plan.incident.closing import close_when_settled, passed_step
from holdfast_controller.plan.incident.incident import Failure
from holdfast_controller.plan.incident.recovery import handle_failure
from holdfast_controller.plan.loss.lost_steps import note_redone, note_start
from holdfast_controller.plan.phase import LIVE, Awaited, Running, Starting, Stopping
from holdfast_controller.plan.stepless import go_on_without_steps
from holdfast_controller.plan.transitions import become_completed, become_running, become_stopped, end_when_gone

STEP_RECORD_S = 10.0
"""While nothing is wrong, the controller records a job's step at most this often."""


def ranks_started(draft: JobDraft, event: RanksStarted) -> None:
    """Note that the ranks of a node run; once all run, wait for their first step."""
    phase = draft.state.phase
    if not _is_present(draft, event) or not isinstance(phase, Starting):
        return
    draft.update_phase(started=phase.started | {event.node})
    expect_first_step_if_started(draft)


def expect_first_step_if_started(draft: JobDraft) -> None:
    """Once the ranks of every node run, expect their first step; of checks, their end."""
    state = draft.state
    if not isinstance(state.phase, Starting) or not state.are_all(state.phase.started):
        return
    if are_checks(state.spec):
        limit_s = time_limit_s(state.spec)
    else:
        limit_s = draft.rules.timeouts.first_step_limit_s(state.step_s, state.first_step_s)
    draft.update_phase(started_at=draft.now, deadline=draft.deadline(Awaited.FIRST_STEP, limit_s))


def first_step(draft: JobDraft, event: FirstStep) -> None:
    """Note a node's first step; the last one makes the job running."""
    phase = draft.state.phase
    if not _is_present(draft, event) or not isinstance(phase, LIVE):
        return
    if phase.makes_no_steps if isinstance(phase, Running) else not phase.stepped:
        note_redone(draft, event)
        if event.is_start_known:
            note_start(draft, event.step)
    draft.update(
        step=event.step,
        has_stepped=True,
        is_numbered=event.is_numbered,
        is_start_unknown=not event.is_start_known,
    )
    if isinstance(phase, Running):
        draft.update_phase(step_seen_at=draft.now, makes_no_steps=False)
    else:
        stepped = phase.stepped | {event.node}
        draft.update_phase(stepped=stepped)
        if draft.state.are_all(stepped):
            become_running(draft, phase)
            updates.note_first_step(draft, event.step)
    passed_step(draft, event.step)


def progress(draft: JobDraft, event: Progress) -> None:
    """Record a step of the running job, if an incident or a code version depends on it or the last record is old."""
    state, phase = draft.state, draft.state.phase
    if event.generation != state.generation:
        return
    if isinstance(phase, Starting):
        go_on_without_steps(draft, phase, event)
        return
    if not isinstance(phase, Running):
        return
    if phase.makes_no_steps and (draft.now - phase.step_seen_at).total_seconds() >= STEP_RECORD_S:
        draft.update_phase(step_seen_at=draft.now)
        close_when_settled(draft)
    if event.step <= state.step:
        return
    idle_s = (draft.now - phase.step_seen_at).total_seconds()
    if state.incident or updates.is_on_trial(state) or idle_s >= STEP_RECORD_S:
        draft.update(step=event.step)
        draft.update_phase(step_seen_at=draft.now)
        passed_step(draft, event.step)
        close_when_settled(draft)
        updates.judge_by_training(draft)


def step_time_measured(draft: JobDraft, event: StepTimeMeasured) -> None:
    draft.update(step_s=event.median_s)


def step_restorable(draft: JobDraft, event: StepRestorable) -> None:
    known = -1 if draft.state.restorable_step is None else draft.state.restorable_step
    draft.update(restorable_step=max(event.step, known), has_checkpoints=True)


def ranks_finished(draft: JobDraft, event: RanksFinished) -> None:
    """Note that all ranks of a node exited with 0; the last node ends the job."""
    if note_finished(draft, event):
        draft.close_incident("recovered", "the job completed")
        become_completed(draft, "every rank exited with code 0")


def note_finished(draft: JobDraft, event: RanksFinished) -> bool:
    """Note that all ranks of a node exited with 0, and return True if every node's have."""
    state, phase = draft.state, draft.state.phase
    if isinstance(phase, Stopping) and event.generation == state.generation - 1 and event.node in state.nodes:
        end_when_gone(draft, {str(event.node)})
        return False
    if not _is_present(draft, event) or not isinstance(phase, LIVE):
        return False
    finished = phase.finished | {event.node}
    draft.update_phase(finished=finished)
    return state.are_all(finished)


def ranks_stopped(draft: JobDraft, event: RanksStopped) -> None:
    """End a stopping job once its ranks have stopped on all nodes."""
    state = draft.state
    if not isinstance(state.phase, Stopping) or event.node not in state.nodes:
        return
    if event.ordered_generation >= state.generation:
        end_when_gone(draft, {str(event.node)})


def start_overdue(draft: JobDraft, passed: DeadlinePassed) -> None:
    """Handle ranks that were not started in time, or that made no first step."""
    state, phase = draft.state, draft.state.phase
    assert isinstance(phase, Starting)
    draft.update_phase(deadline=None)
    waited_s, missing = passed.waited_s, passed.missing_nodes
    if passed.awaited == Awaited.FIRST_STEP:
        if state.has_stepped:
            text = f"no first step within {waited_s:.0f} s of starting generation {state.generation}"
            handle_failure(draft, _failure(draft, Symptom.NO_FIRST_STEP, text))
        elif state.incident:
            # A job that never made a step may make none that is seen, and no collectives either. It has come back as
            # far as anyone knows, and its next failure is not one more of the same incident.
            draft.update(is_numbered=False)
            become_running(draft, phase, makes_no_steps=True)
        # In its first generation it may also compile for long: the finding is all that follows.
    elif set(missing) == set(state.nodes):
        # Silence of all nodes shows no fault of any one.
        text = f"no node started its ranks within {waited_s:.0f} s"
        handle_failure(draft, _failure(draft, Symptom.START_TIMEOUT, text))
    else:
        failures = [
            _failure(draft, Symptom.START_TIMEOUT, f"{node} did not start its ranks within {waited_s:.0f} s", node)
            for node in missing
        ]
        for failure in failures:
            if not isinstance(draft.state.phase, Stopping):
                handle_failure(draft, failure)


def stop_overdue(draft: JobDraft, _: DeadlinePassed) -> None:
    """End a stopping job though some nodes have not reported that their ranks are gone."""
    become_stopped(draft)


def _failure(draft: JobDraft, symptom: Symptom, text: str, node: str | None = None) -> Failure:
    state = draft.state
    return Failure(symptom=symptom, generation=state.generation, step=state.step, text=text, node=node)


def _is_present(draft: JobDraft, event: RanksStarted | FirstStep | RanksFinished) -> bool:
    return event.generation == draft.state.generation and event.node in draft.state.nodes
