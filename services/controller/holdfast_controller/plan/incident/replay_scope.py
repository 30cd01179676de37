"""Whether a job can be replayed, and from where to where. Pure."""

from __future__ import annotations

from datetime import datetime

from holdfast.engines.checks.replay_groups import NotReplayable, plan_replay
from holdfast.orders.replay import ReplaySettings
from holdfast.settings.ladder import LadderPolicy
from holdfast.settings.timeouts import Timeouts
from holdfast_controller.plan.incident.incident import Failure
from holdfast_controller.plan.job import JobState
from holdfast_controller.plan.phase import Replay

TRAINING_SHARE = 0.5
"""Of the time that a phase has: the rest is for starting, restoring, and what is slower in small groups."""


def can_replay(state: JobState) -> bool:
    """Whether the job's machines can be compared, and none of its checkpoints can come to harm.

    Of a job without any that Holdfast knows of, nobody could keep a replay from writing its own.
    """
    if not state.has_checkpoints or state.vacancies:
        return False
    try:
        plan_replay(state.spec.topology())
    except NotReplayable:
        return False
    return True


def first_phase(state: JobState, failure: Failure, now: datetime, policy: LadderPolicy, timeouts: Timeouts) -> Replay:
    """The replay of what failed, at its beginning.

    Raises:
        NotReplayable: the job cannot be replayed.
    """
    topology = state.spec.topology()
    plan = plan_replay(topology)
    steps_max = policy.replay_steps_max
    if state.step_s:
        steps_max = max(1, min(steps_max, int(TRAINING_SHARE * timeouts.replay_s / state.step_s)))
    settings = ReplaySettings(
        until=(failure.spoiled.step if failure.spoiled else failure.step) + 1,
        mesh=plan.mesh,
        of_mesh=str(topology.mesh),
        steps_min=min(policy.replay_steps_min, steps_max),
        steps_max=steps_max,
        layers=policy.replay_layers,
    )
    return Replay(
        plan=plan,
        settings=settings,
        restore_at_most=state.next_limit,
        began_at=now,
        phase_began_at=now,
        failure=failure,
    )
