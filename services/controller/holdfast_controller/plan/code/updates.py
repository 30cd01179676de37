"""The decisions about a job's code: updates at once or with the next failure, and rollbacks (ByteRobust §6.1).

A pending version is brought in by the next start of ranks, whatever leads to it (`transitions.become_starting`).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from holdfast.code.manifest import Manifest, short
from holdfast.events import CodeJudged, UpdatePlanned, UpdateWithdrawn
from holdfast.events.parts.job import JobSpec
from holdfast.requests import CodeOffer, RollbackJob, UpdateJob
from holdfast_controller.plan.code.code_state import CodeState, CodeVersion, Pending, Verdict
from holdfast_controller.plan.draft import JobDraft
from holdfast_controller.plan.job import JobState
from holdfast_controller.plan.phase import LIVE, Running, Stopping, Waiting
from holdfast_controller.plan.transitions import become_starting


def first_version(offer: CodeOffer | None, asked_by: str, now: datetime) -> CodeState:
    """What a job begins with."""
    if offer is None:
        return CodeState()
    return CodeState(version=offer.version, versions=(_version(CodeState(), offer, asked_by, now),), since_generation=1)


def refused_at_submission(spec: JobSpec, offer: CodeOffer | None, held: Mapping[str, Manifest]) -> str:
    """Why a job cannot begin with this code; "" if it can."""
    return "" if offer is None else _unusable(spec, offer.version, held)


# --- requests of people -------------------------------------------------------------------------


def update(draft: JobDraft, request: UpdateJob) -> str:
    """Bring a version in; returns why not, "" if it is done or planned."""
    state, code, offer = draft.state, draft.state.code, request.code
    known = code.known(offer.version)
    if why := _busy(state, request.is_urgent) or _unusable(state.spec, offer.version, draft.rules.manifests):
        return why
    if known and offer.version == code.version:
        waits = f"; `holdfast rollback {state.job}` withdraws the update that waits" if code.pending else ""
        return f"job {state.job} runs {known.name} already: nothing differs{waits}"
    if known and known.verdict is Verdict.BAD:
        return (
            f"{known.name} was found bad: {known.why}; change the code, or run it all the same with "
            f"`holdfast rollback {state.job} --to {known.number}`"
        )
    if known is None:
        code = code.with_version(_version(code, offer, request.asked_by, draft.now))
    until = None if request.is_urgent else draft.now + timedelta(seconds=request.within_s)
    reason = f"asked by {request.asked_by}" + (f": {offer.message}" if offer.message else "")
    _plan(
        draft,
        code,
        Pending(
            version=offer.version,
            asked_by=request.asked_by,
            until=until,
            is_urgent=request.is_urgent,
            goes_back=known is not None and known.verdict is not Verdict.UNKNOWN,
            reason=reason,
        ),
    )
    return ""


def rollback(draft: JobDraft, request: RollbackJob) -> str:
    """Go back to an earlier version; returns why not, "" if it is done or planned."""
    state, code, present = draft.state, draft.state.code, draft.state.code.present
    if why := _busy(state, True):
        return why
    if present is None:
        return _runs_in_place(state.spec)
    if code.pending and not request.to:
        # What was asked for last is taken back first; the present version has done nothing wrong.
        return _withdraw(draft, request.asked_by)
    target = code.fallback
    if request.to:
        found = code.named(request.to)
        if len(found) != 1:
            what = "is none of the last versions" if not found else "could be several versions"
            return f"{request.to} {what} of job {state.job}; `holdfast versions {state.job}` lists them"
        (target,) = found
    if target is None:
        return f"job {state.job} has no other version that has trained; `holdfast versions {state.job}` lists all"
    if target.version == code.version:
        return _withdraw(draft, request.asked_by)
    reason = f"asked by {request.asked_by}"
    if target.verdict is Verdict.BAD:
        code = _judge(draft, code, target.version, Verdict.UNKNOWN, f"it gets another try, {reason}")
    if not request.to:
        code = _judge(draft, code, present.version, Verdict.BAD, f"rolled back: {reason}")
    _plan(
        draft,
        code,
        Pending(version=target.version, asked_by=request.asked_by, is_urgent=True, goes_back=True, reason=reason),
    )
    return ""


# --- what training tells of a version -----------------------------------------------------------


def began(draft: JobDraft, step: int) -> None:
    """Every node has done a step of the present generation."""
    code = draft.state.code
    if code.present is None:
        return
    code = code.update(first_step=step)
    if code.present and code.present.verdict is Verdict.UNKNOWN:
        code = code.judged(code.present.version, Verdict.TRAINED, f"it has made its first step, {step}")
    draft.state = draft.state.update(code=code)


def is_on_trial(state: JobState) -> bool:
    """Whether steps may tell something new of the present version."""
    present = state.code.present
    return present is not None and present.verdict is Verdict.TRAINED


def proved(draft: JobDraft) -> None:
    """The job has come further: its code is good once it has trained for long enough, and nothing is wrong now."""
    state, present, policy = draft.state, draft.state.code.present, draft.rules.code
    if present is None or not is_on_trial(state) or state.incident or not isinstance(state.phase, Running):
        return
    first = state.code.first_step
    steps = state.step - first if first is not None else 0
    trained_s = (draft.now - state.phase.since).total_seconds()
    if steps >= policy.good_after_steps:
        why = f"it has trained for {steps} steps"
    elif trained_s >= policy.good_after_s:
        why = f"it has trained for {trained_s:.0f} s"
    else:
        return
    draft.state = state.update(code=_judge(draft, state.code, present.version, Verdict.GOOD, why))


# --- failures -----------------------------------------------------------------------------------


def is_of_present_code(state: JobState, generation: int) -> bool:
    """Whether that generation ran what runs now: what an earlier one did says nothing of it."""
    return generation >= state.code.since_generation


def can_roll_back(state: JobState, generation: int) -> bool:
    """Whether the code may be at fault for a failure of that generation, and there is a version to go back to.

    A version that was found good is not doubted: what it fails of is in the data, the machines, or seldom. One that was
    found bad is on its way out.
    """
    present = state.code.present
    if present is None or present.verdict in (Verdict.GOOD, Verdict.BAD) or not is_of_present_code(state, generation):
        return False
    return _way_out(state.code) is not None


def roll_back(draft: JobDraft, reason: str) -> None:
    """Find the present version bad; the next start brings in the last good one, or a newer one that waits."""
    code = draft.state.code
    present, target = code.present, _way_out(code)
    assert present is not None and target is not None, "see `can_roll_back`"
    code = _judge(draft, code, present.version, Verdict.BAD, reason)
    if code.pending is None:
        pending = Pending(
            version=target, asked_by="", is_urgent=True, goes_back=True, reason=f"{present.name}: {reason}"
        )
        code = code.update(pending=pending)
    draft.state = draft.state.update(code=code)


# --- time ---------------------------------------------------------------------------------------


def is_due(state: JobState, now: datetime) -> bool:
    """Whether no failure has come for the version that waits, and its time is over."""
    pending = state.code.pending
    if pending is None or pending.until is None or not isinstance(state.phase, LIVE) or state.phase.finished:
        return False
    return now >= pending.until


def due(draft: JobDraft) -> None:
    """Bring in what waits: its time is over."""
    become_starting(draft, "no failure came for the update to ride on, and its time is over")


def _plan(draft: JobDraft, code: CodeState, pending: Pending) -> None:
    draft.state = draft.state.update(code=code.update(pending=pending))
    draft.emit(
        UpdatePlanned,
        version=pending.version,
        is_urgent=pending.is_urgent,
        until=pending.until,
        reason=pending.reason,
    )
    if pending.is_urgent and isinstance(draft.state.phase, (*LIVE, Waiting)):
        become_starting(draft, pending.reason)


def _withdraw(draft: JobDraft, asked_by: str) -> str:
    """The job stays with what it runs; returns why there is nothing to do, "" if something waited."""
    code = draft.state.code
    if code.pending is None:
        return f"job {draft.state.job} runs that version already"
    draft.emit(UpdateWithdrawn, version=code.pending.version, reason=f"asked by {asked_by}")
    draft.state = draft.state.update(code=code.update(pending=None))
    return ""


def _judge(draft: JobDraft, code: CodeState, version: str, verdict: Verdict, why: str) -> CodeState:
    draft.emit(CodeJudged, version=version, verdict=verdict.value, reason=why)
    return code.judged(version, verdict, why)


def _way_out(code: CodeState) -> str | None:
    """What may take the place of the present version."""
    if code.pending is not None:
        return code.pending.version
    return code.fallback.version if code.fallback else None


def _busy(state: JobState, is_urgent: bool) -> str:
    if isinstance(state.phase, Stopping):
        return f"job {state.job} is being stopped"
    if is_urgent and isinstance(state.phase, LIVE) and state.phase.finished:
        return f"job {state.job} is about to end: ranks on {', '.join(sorted(state.phase.finished))} have finished"
    return ""


def _runs_in_place(spec: JobSpec) -> str:
    return (
        f"job {spec.name} runs {spec.script} where it lies: it began without its code being kept, so no other can take "
        "its place; submit it with --code DIR"
    )


def _unusable(spec: JobSpec, version: str, held: Mapping[str, Manifest]) -> str:
    if not spec.code_root:
        return _runs_in_place(spec)
    manifest = held.get(version)
    if manifest is None:
        return f"code version {short(version)} is not held by the controller: bring it again"
    if spec.is_module:
        return ""
    script = spec.script.removeprefix(spec.code_root.rstrip("/") + "/")
    if any(entry.path == script for entry in manifest.entries):
        return ""
    return (
        f"there is no {script} in the new code, and that is what job {spec.name} runs: name the root of the same tree"
    )


def _version(code: CodeState, offer: CodeOffer, asked_by: str, now: datetime) -> CodeVersion:
    return CodeVersion(
        version=offer.version,
        number=max((known.number for known in code.versions), default=0) + 1,
        author=asked_by,
        created_at=now,
        parent=code.version,
        origin=offer.origin,
        commit=offer.commit,
        is_dirty=offer.is_dirty,
        message=offer.message,
        files=offer.files,
        code_bytes=offer.code_bytes,
    )
