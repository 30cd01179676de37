"""Ranks that make no steps: servers of parameters, evaluators, scripts that apply gradients by hand.

A generation runs once each of its nodes has made a step, apart from those that others are far ahead of. A job without
any steps shows that it trains only by the collectives that it passes; it is not restarted because no step is seen.
"""

from __future__ import annotations

from datetime import timedelta

from holdfast.events import Progress
from holdfast.events.parts.ranks import STEPS_AHEAD
from holdfast_controller.plan.draft import JobDraft
from holdfast_controller.plan.phase import Starting
from holdfast_controller.plan.transitions import become_running

MOVED_WITHIN_S = 5.0
"""Time since a rank passed a phase or a collective, within which it counts as going on."""

LAST_LOOK_S = 15.0
"""Time before the first step is overdue in which nodes that go on without one count."""

SEEN_FOR_S = 10.0
"""Time after its start from which a job that has never made a step counts as going on after a failure."""


def go_on_without_steps(draft: JobDraft, phase: Starting, event: Progress) -> None:
    """Note, before all nodes have made a step, whether those without one go on; the last one makes the job running."""
    node = event.node
    if node in phase.stepped:
        if not phase.is_ahead and max(rank.steps_done for rank in event.ranks) >= STEPS_AHEAD:
            draft.update_phase(is_ahead=True)
        return
    is_served = phase.is_ahead and not any(rank.steps_done for rank in event.ranks)
    if node is None or node in phase.moving or not (is_served or (_may_count(draft, phase) and _goes_on(event))):
        return
    moving = phase.moving | {node}
    draft.update_phase(moving=moving)
    if draft.state.are_all(phase.stepped | moving):
        if not phase.stepped:
            draft.update(is_numbered=False)
        become_running(draft, phase, makes_no_steps=not phase.stepped)


def _may_count(draft: JobDraft, phase: Starting) -> bool:
    """Return True if the job may be one that makes no steps."""
    if phase.stepped or phase.started_at is None:
        return False
    if not draft.state.has_stepped and draft.state.incident is not None:
        return draft.now - phase.started_at >= timedelta(seconds=SEEN_FOR_S)
    return phase.deadline is not None and draft.now >= phase.deadline.until - timedelta(seconds=LAST_LOOK_S)


def _goes_on(event: Progress) -> bool:
    """Return True if no rank of the node has made a step, and all pass collectives."""
    return all(
        not rank.steps_done and rank.collectives and rank.since_change_s <= MOVED_WITHIN_S and not rank.is_stopped
        for rank in event.ranks
        if not rank.has_ended
    )
