"""The decisions about requests: submit a job, stop it, change its code, reset its circuit breaker."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

import msgspec

from holdfast.engines.checks.checks_program import are_checks, time_limit_s
from holdfast.events import BreakerReset, JobSubmitted
from holdfast.events.parts.job import JobSpec
from holdfast.events.parts.scalars import Count
from holdfast.node.rank_variables import RESTORE_STEP
from holdfast.requests import ResetBreaker, StopJob, SubmitJob
from holdfast_controller.plan.code import updates
from holdfast_controller.plan.code.code_state import CodeState
from holdfast_controller.plan.draft import JobDecision, JobDraft, Rules
from holdfast_controller.plan.job import JobState
from holdfast_controller.plan.phase import Claiming, JobOutcome, Stopping
from holdfast_controller.plan.transitions import become_stopping

_MASK = "***"


def submit(state: JobState | None, request: SubmitJob, now: datetime, rules: Rules) -> JobDecision:
    """Accept a job and request its nodes; `state` is a job of the same name, if there is one."""
    spec = request.spec
    if state is not None:
        return JobDecision(state=state, refusal=f"a job named {spec.name} exists already; choose another --name")
    if why := updates.refused_at_submission(spec, request.code, rules.manifests):
        return JobDecision(state=None, refusal=why)
    try:
        job = new_job(spec, now, updates.first_version(request.code, request.asked_by, now))
        job = job.update(author=request.asked_by.partition(" (pid ")[0])
    except ValueError as error:
        return JobDecision(state=None, refusal=str(error))
    draft = JobDraft(job, request.id, now, rules)
    draft.emit(JobSubmitted, spec=masked(job.spec), reason=f"asked by {request.asked_by}")
    draft.request_nodes("the job needs nodes to start")
    return draft.decision()


def directory_taken(spec: JobSpec, live: Iterable[JobState]) -> str:
    """Return why the job may not have its directory, "" if it may: each of two jobs would remove the other's steps."""
    for state in live:
        if state.spec.directory == spec.directory and state.job != spec.name:
            return (
                f"job {state.job} is not over, and has its checkpoints in {spec.directory}: choose another --job-dir, "
                f"or stop it first (holdfast stop {state.job})"
            )
    return ""


def stop(draft: JobDraft, request: StopJob) -> str:
    """Stop the job for good, unless it is stopping already."""
    if not isinstance(draft.state.phase, Stopping):
        become_stopping(draft, JobOutcome.STOPPED, f"asked by {request.asked_by}", exit_code=143)
    return ""


def reset_breaker(draft: JobDraft, request: ResetBreaker) -> str:
    """Close the circuit breaker and forget the evictions that it counted; return why not."""
    if draft.state.breaker_open_since is None:
        return f"the circuit breaker of job {request.job} is closed"
    draft.update(breaker_open_since=None, evictions=())
    draft.emit(BreakerReset, reason=f"asked by {request.asked_by}")
    return ""


def new_job(spec: JobSpec, now: datetime, code: CodeState | None = None) -> JobState:
    """Return a job that has no nodes yet; raise ValueError if its restore step or time limit of checks is no use.

    A restore step that the user set in the environment becomes the limit of the first generation: in the environment it
    would hold for every generation, and discard at each restart what was trained since.
    """
    if are_checks(spec) and not time_limit_s(spec) > 0:
        raise ValueError(f"a run of checks cannot be given {time_limit_s(spec):g} s: use a limit above 0")
    env = dict(spec.env)
    given = env.pop(RESTORE_STEP, "")
    limit = _step(given) if given else None
    return JobState(
        spec=msgspec.structs.replace(spec, env=env),
        phase=Claiming(),
        submitted_at=now,
        members=(None,) * spec.nnodes,
        given_limit=limit,
        next_restore_at_most=limit,
        code=code or CodeState(),
    )


def masked(spec: JobSpec) -> JobSpec:
    """Return the specification without its secrets: events are readable by all."""
    return msgspec.structs.replace(spec, env=dict.fromkeys(spec.env, _MASK), token=_MASK if spec.token else "")


def refused(state: JobState | None, job: str, forgotten: datetime | None) -> str:
    """Return why a request is refused, else ""; `forgotten`: when the job ended, if its state was deleted since."""
    if forgotten:
        return f"job {job} ended on {forgotten:%Y-%m-%d} and was forgotten; its name stays taken"
    if state is None:
        return f"there is no job named {job}; `holdfast jobs` lists them"
    return f"job {job} is over already: {state.phase_name}" if state.is_over else ""


def _step(value: str) -> int:
    try:
        return msgspec.json.decode(value, type=Count)
    except msgspec.MsgspecError:
        raise ValueError(f"{RESTORE_STEP} is no step: give it a number from 0") from None
