"""The scope of a dual-phase replay: whether a job can be replayed, and which steps."""

from __future__ import annotations

from datetime import datetime

from holdfast.engines.checks.replay_groups import NotReplayable, plan_replay
from holdfast.orders.replay import ReplaySettings
from holdfast.settings.decisions.ladder import LadderPolicy
from holdfast.settings.timeouts import Timeouts
from holdfast_controller.plan.incident.incident import Failure
from holdfast_controller.plan.job import JobState
from holdfast_controller.plan.loss.lost_steps import has_checkpoints, trained_up_to
from holdfast_controller.plan.phase import ReplayProgress

TRAINING_SHARE = 0.5
"""Share of a phase's time limit that is planned for steps: starting, restoring and smaller groups take the rest."""


def can_replay(state: JobState, policy: LadderPolicy) -> bool:
    """Return True if a replay does no harm and can show something.

    Holdfast can keep it from writing only checkpoints that it knows of. A job whose steps are in memory only begins
    from its beginning, and must come to the fault from there.
    """
    comes_to_fault = state.has_checkpoints or trained_up_to(state) < policy.replay_steps_max
    if not has_checkpoints(state) or not comes_to_fault or state.vacancies:
        return False
    try:
        plan_replay(state.spec.topology())
    except NotReplayable:
        return False
    return True


def first_phase(
    state: JobState, failure: Failure, now: datetime, policy: LadderPolicy, timeouts: Timeouts
) -> ReplayProgress:
    """Return the first phase of the replay of `failure`; raise NotReplayable if the job cannot be replayed."""
    topology = state.spec.topology()
    plan = plan_replay(topology)
    steps_max = policy.replay_steps_max
    if state.step_s:
        steps_max = max(1, min(steps_max, int(TRAINING_SHARE * timeouts.replay_s / state.step_s)))
    settings = ReplaySettings(
        until=(failure.bad_step.step if failure.bad_step else failure.step) + 1,
        mesh=plan.mesh,
        of_mesh=str(topology.mesh),
        steps_min=min(policy.replay_steps_min, steps_max),
        steps_max=steps_max,
        layers=policy.replay_layers,
    )
    return ReplayProgress(
        plan=plan,
        settings=settings,
        restore_at_most=state.next_limit,
        began_at=now,
        phase_began_at=now,
        failure=failure,
    )
