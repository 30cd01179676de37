"""The decisions about a job's code: updates at once or with the next failure, and rollbacks (ByteRobust §6.1).

A pending version is brought in by the next start of ranks, whatever leads to it (`transitions.become_starting`).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

import msgspec

from holdfast.code.manifest import Manifest, short
from holdfast.events import CodeJudged, UpdatePlanned, UpdateWithdrawn
from holdfast.events.parts.job import JobSpec
from holdfast.requests import CodeOffer, RollbackJob, UpdateJob
from holdfast_controller.plan.code.code_state import CodeState, CodeVerdict, CodeVersion, PendingVersion
from holdfast_controller.plan.draft import JobDraft
from holdfast_controller.plan.incident.incident import Incident
from holdfast_controller.plan.job import JobState
from holdfast_controller.plan.phase import LIVE, Running, Stopping, Waiting
from holdfast_controller.plan.transitions import become_starting


def first_version(offer: CodeOffer | None, asked_by: str, now: datetime) -> CodeState:
    """Return the state of a job's code at its submission. `offer` None: the script runs in place, without versions."""
    if offer is None:
        return CodeState()
    return CodeState(version=offer.version, versions=(_version(CodeState(), offer, asked_by, now),), since_generation=1)


def refused_at_submission(spec: JobSpec, offer: CodeOffer | None, held: Mapping[str, Manifest]) -> str:
    """Return why a job cannot run this code; "" if it can."""
    return "" if offer is None else _why_unusable(spec, offer.version, held)


def update(draft: JobDraft, request: UpdateJob) -> str:
    """Bring a version in, now or with the next restart; return why not, "" if that is done or planned."""
    state, code, offer = draft.state, draft.state.code, request.code
    known = code.known(offer.version)
    if why := _why_not_now(state, request.is_urgent) or _why_unusable(state.spec, offer.version, draft.rules.manifests):
        return why
    if known and offer.version == code.version:
        waits = f"; `holdfast rollback {state.job}` withdraws the pending update" if code.pending else ""
        return f"job {state.job} runs {known.name} already: nothing differs{waits}"
    if known and known.verdict is CodeVerdict.BAD:
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
        PendingVersion(
            version=offer.version,
            asked_by=request.asked_by,
            until=until,
            is_urgent=request.is_urgent,
            goes_back=known is not None and known.verdict is not CodeVerdict.UNKNOWN,
            reason=reason,
        ),
    )
    return ""


def rollback(draft: JobDraft, request: RollbackJob) -> str:
    """Go back to an earlier version, or withdraw the pending one; return why not, "" if that is done."""
    state, code, present = draft.state, draft.state.code, draft.state.code.present
    if why := _why_not_now(state, True):
        return why
    if present is None:
        return _runs_in_place(state.spec)
    if code.pending and not request.to:
        # The last request is withdrawn first; the present version has not failed.
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
    if target.verdict is CodeVerdict.BAD:
        code = _judge(draft, code, target.version, CodeVerdict.UNKNOWN, f"it is tried again, {reason}")
    if not request.to:
        code = _judge(draft, code, present.version, CodeVerdict.BAD, f"rolled back: {reason}")
    _plan(
        draft,
        code,
        PendingVersion(
            version=target.version, asked_by=request.asked_by, is_urgent=True, goes_back=True, reason=reason
        ),
    )
    return ""


def note_first_step(draft: JobDraft, step: int) -> None:
    """Note that every node has made a step of the present generation."""
    code = draft.state.code
    if code.present is None:
        return
    code = code.update(first_step=step)
    if code.present and code.present.verdict is CodeVerdict.UNKNOWN:
        code = code.judged(code.present.version, CodeVerdict.TRAINED, f"it has made its first step, {step}")
    draft.update(code=code)


def is_on_trial(state: JobState) -> bool:
    """Return True if more steps may change the verdict on the present version."""
    present = state.code.present
    return present is not None and present.verdict is CodeVerdict.TRAINED


def judge_by_training(draft: JobDraft) -> None:
    """Judge the present version good once it has trained for long enough without an open incident."""
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
    draft.state = state.update(code=_judge(draft, state.code, present.version, CodeVerdict.GOOD, why))


def note_recovery(draft: JobDraft, incident: Incident) -> None:
    """Count an incident that has ended against a version on trial, if each of its failures was one of that version."""
    if is_on_trial(draft.state) and has_only_failures_of_present_code(draft.state, incident):
        draft.update(code=draft.state.code.update(failures=draft.state.code.failures + 1))


def has_only_failures_of_present_code(state: JobState, incident: Incident) -> bool:
    return all(is_of_present_code(state, taken.generation) for taken in incident.taken)


def is_of_present_code(state: JobState, generation: int) -> bool:
    return generation >= state.code.since_generation


def can_roll_back(state: JobState, generation: int) -> bool:
    """Return True if the code may be at fault for a failure of `generation`, and there is a version to go back to.

    A good version is not doubted: its failures come from the data, the machines, or rare conditions. A bad one is being
    replaced already.
    """
    present = state.code.present
    if (
        present is None
        or present.verdict in (CodeVerdict.GOOD, CodeVerdict.BAD)
        or not is_of_present_code(state, generation)
    ):
        return False
    return _replacement(state.code) is not None


def roll_back(draft: JobDraft, reason: str) -> None:
    """Judge the present version bad; the next start brings in the pending version, or else the last good one."""
    code = draft.state.code
    present, target = code.present, _replacement(code)
    assert present is not None and target is not None, "see `can_roll_back`"
    code = _judge(draft, code, present.version, CodeVerdict.BAD, reason)
    if code.pending is None:
        pending = PendingVersion(
            version=target, asked_by="", is_urgent=True, goes_back=True, reason=f"{present.name}: {reason}"
        )
        code = code.update(pending=pending)
    draft.update(code=code)


def is_due(state: JobState, now: datetime) -> bool:
    """Return True if the time limit of the pending version has passed without a restart."""
    pending = state.code.pending
    if pending is None or pending.until is None or not isinstance(state.phase, LIVE) or state.phase.finished:
        return False
    return now >= pending.until


def restart_for_update(draft: JobDraft) -> None:
    become_starting(draft, "no restart happened before the time limit of the update")


def _plan(draft: JobDraft, code: CodeState, pending: PendingVersion) -> None:
    planned = draft.emit(
        UpdatePlanned,
        version=pending.version,
        is_urgent=pending.is_urgent,
        until=pending.until,
        reason=pending.reason,
    )
    draft.update(code=code.update(pending=msgspec.structs.replace(pending, event=planned.id)))
    if pending.is_urgent and isinstance(draft.state.phase, (*LIVE, Waiting)):
        become_starting(draft, pending.reason)


def _withdraw(draft: JobDraft, asked_by: str) -> str:
    """Withdraw the pending version; return why there is nothing to do, "" if there was one."""
    code = draft.state.code
    if code.pending is None:
        return f"job {draft.state.job} runs that version already"
    draft.emit(UpdateWithdrawn, version=code.pending.version, reason=f"asked by {asked_by}")
    draft.update(code=code.update(pending=None))
    return ""


def _judge(draft: JobDraft, code: CodeState, version: str, verdict: CodeVerdict, why: str) -> CodeState:
    draft.emit(CodeJudged, version=version, verdict=verdict.value, reason=why)
    return code.judged(version, verdict, why)


def _replacement(code: CodeState) -> str | None:
    if code.pending is not None:
        return code.pending.version
    return code.fallback.version if code.fallback else None


def _why_not_now(state: JobState, is_urgent: bool) -> str:
    if isinstance(state.phase, Stopping):
        return f"job {state.job} is being stopped"
    if is_urgent and isinstance(state.phase, LIVE) and state.phase.finished:
        return f"job {state.job} is about to end: ranks on {', '.join(sorted(state.phase.finished))} have finished"
    return ""


def _runs_in_place(spec: JobSpec) -> str:
    return (
        f"job {spec.name} runs {spec.script} in place: it was submitted without its code, so that cannot be replaced; "
        "submit it with --code DIR"
    )


def _why_unusable(spec: JobSpec, version: str, held: Mapping[str, Manifest]) -> str:
    if not spec.code_root:
        return _runs_in_place(spec)
    manifest = held.get(version)
    if manifest is None:
        return f"code version {short(version)} is not stored by the controller: send it again"
    if spec.is_module:
        return ""
    script = spec.script.removeprefix(spec.code_root.rstrip("/") + "/")
    if any(entry.path == script for entry in manifest.entries):
        return ""
    return f"the new code has no {script}, which job {spec.name} runs: name the root of the same tree"


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
