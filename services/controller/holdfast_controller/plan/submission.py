"""A job as it is asked for: what it begins with, and what everybody may read of it. Pure."""

from __future__ import annotations

from datetime import datetime

import msgspec

from holdfast.engines.checks.checks_program import are_checks, time_limit_s
from holdfast.events.parts.job import JobSpec
from holdfast.events.parts.scalars import Count
from holdfast.node.rank_variables import RESTORE_STEP
from holdfast_controller.plan.code.code_state import CodeState
from holdfast_controller.plan.draft import Outcome
from holdfast_controller.plan.job import JobPhase, JobState

_MASK = "***"


def new_job(spec: JobSpec, now: datetime, code: CodeState | None = None) -> JobState:
    """The job before it has nodes, with the code that it begins with.

    The user's own limit to what is restored is one like any other: in the environment it would stand for ever, and
    cut at each restart what was trained since.

    Raises:
        ValueError: that limit is no step; or it is a run of checks of which nobody knows when it is over.
    """
    if are_checks(spec) and not time_limit_s(spec) > 0:
        raise ValueError(f"a run of checks cannot be given {time_limit_s(spec):g} s: use a limit above 0")
    env = dict(spec.env)
    limit = env.pop(RESTORE_STEP, "")
    return JobState(
        spec=msgspec.structs.replace(spec, env=env),
        phase=JobPhase.CLAIMING,
        submitted_at=now,
        members=(None,) * spec.nnodes,
        next_restore_at_most=_step(limit) if limit else None,
        code=code or CodeState(),
    )


def masked(spec: JobSpec) -> JobSpec:
    """Without what only the job's ranks may know.

    Events are read by everybody; values of environment variables are often secrets, and the token always is.
    """
    return msgspec.structs.replace(spec, env=dict.fromkeys(spec.env, _MASK), token=_MASK if spec.token else "")


def of_before(job: str, ended_at: datetime) -> str:
    """What a person is told of a job that was forgotten."""
    return f"job {job} ended on {ended_at:%Y-%m-%d} and was forgotten; its name stays taken"


def no_longer(state: JobState | None, job: str, forgotten: datetime | None) -> Outcome:
    """What a person is told who asks something of a job that is not there, or over."""
    if forgotten:
        return Outcome(state=None, refusal=of_before(job, forgotten))
    if state is None:
        return Outcome(state=None, refusal=f"there is no job named {job}; `holdfast jobs` lists them")
    return Outcome(state=state, refusal=f"job {job} is over already: {state.phase}")


def _step(value: str) -> int:
    try:
        return msgspec.json.decode(value, type=Count)
    except msgspec.MsgspecError:
        raise ValueError(f"{RESTORE_STEP} is no step: give it a number from 0") from None
