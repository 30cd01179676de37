"""The warm-up of a job's nodes, beside the start of its ranks (TRANSOM §IV-A).

The ranks do not wait for it. A node that it finds unfit is replaced where there is another one; a node that nothing can
replace goes on, and is blamed if one of its ranks ends before the job trains. Until the results of a node are here, or
the limit has passed, the ends of its ranks wait: a rank that ends for a missing file looks like an error of its script.

Silence shows nothing: a node that does not answer is neither fit nor unfit.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from holdfast.engines.checks.checks_verdict import SuspectNode
from holdfast.engines.checks.warm_up import DEVICES, SharedFinding, judge_warm_up
from holdfast.events import DiagnosticResult, ProcessExited, Withheld
from holdfast.symptoms import Root, Symptom
from holdfast_controller.plan.doubt import shared_faults
from holdfast_controller.plan.doubt.replacement import replace_when_possible
from holdfast_controller.plan.draft import JobDraft
from holdfast_controller.plan.incident.incident import Failure, Rung
from holdfast_controller.plan.incident.rank_exit import rank_exited
from holdfast_controller.plan.incident.recovery import handle_failure
from holdfast_controller.plan.incident.rung_choice import WARM_UP
from holdfast_controller.plan.job import JobState
from holdfast_controller.plan.phase import LIVE, Starting, WarmUpProgress

HELD_MAX = 64
"""Ends of ranks that are held at most; further ones would show nothing more."""


def result(draft: JobDraft, event: DiagnosticResult) -> None:
    """Note a result of one node; the last one concludes the warm-up."""
    state, warm_up = draft.state, draft.state.warm_up
    if warm_up is None or warm_up.is_judged or event.generation != state.generation or event.node not in state.nodes:
        return
    assert event.node is not None
    results = warm_up.results.having(event)
    over = warm_up.over | {event.node} if results.has_all(event.node) else warm_up.over
    _update(draft, results=results, over=over)
    if state.are_all(over):
        _conclude(draft)
    else:
        judge_held(draft)


def overdue(draft: JobDraft) -> None:
    """Conclude without the nodes that did not answer."""
    _conclude(draft)


def takes(draft: JobDraft, event: ProcessExited) -> bool:
    """Hold or judge the end of a rank that concerns the warm-up; return False if it does not."""
    state, warm_up = draft.state, draft.state.warm_up
    if warm_up is None or event.generation != state.generation or not isinstance(state.phase, Starting):
        return False
    if warm_up.held or _waits(state, warm_up, event):
        # Ends after it are held as well: judged before it, the errors of its partners would be taken for the cause.
        if len(warm_up.held) < HELD_MAX:
            _update(draft, held=(*warm_up.held, event))
        return True
    known = state.unfit.get(event.node or "")
    if known is None:
        return False
    # Nothing could replace it; but the job cannot train with it either.
    text = f"{known.text}; rank {event.rank} ended on it"
    evidence = (*known.evidence, event.id)
    alone = msgspec.structs.replace(known, node=event.node, group=(event.node or "",))
    handle_failure(draft, msgspec.structs.replace(alone, text=text, rank=event.rank, evidence=evidence, is_urgent=True))
    return True


def judge_held(draft: JobDraft) -> None:
    """Judge the held ends of ranks once none must wait, those on unfit nodes first: they explain the others."""
    warm_up = draft.state.warm_up
    if warm_up is None or any(_waits(draft.state, warm_up, event) for event in warm_up.held):
        return
    _update(draft, held=())
    for event in sorted(warm_up.held, key=lambda event: event.node not in draft.state.unfit):
        if not takes(draft, event):
            rank_exited(draft, event)


def _waits(state: JobState, warm_up: WarmUpProgress, event: ProcessExited) -> bool:
    """Return True while it is not known whether the rank's node is fit, or whether others take the place of unfit ones.

    A failed test counts by comparison with other nodes, whose results may still be to come.
    """
    if state.replacement is not None and state.replacement.failure.of_warm_up:
        return True
    if warm_up.is_judged or event.node not in state.nodes:
        return False
    failed = any(one.status == "failed" and event.node in (one.node, *one.peers) for one in warm_up.results)
    return failed or event.node not in warm_up.over


def _conclude(draft: JobDraft) -> None:
    state, warm_up = draft.state, draft.state.warm_up
    assert warm_up is not None
    _update(draft, is_judged=True)
    if not isinstance(state.phase, LIVE):
        return
    broken_before = tuple(known.ends for known in state.incident.links) if state.incident else ()
    verdict = judge_warm_up(state.nodes, warm_up.results, state.newcomers, broken_before)
    is_started = isinstance(state.phase, Starting)
    for found in verdict.shared if is_started else ():
        _share(draft, found)
    # A job that trains has what the others test, and a device may compute wrongly all the same.
    suspects = tuple(it for it in verdict.suspects if is_started or it.reason.startswith(DEVICES))
    if suspects and draft.rules.mechanisms.warm_up == "observe":
        for suspect in suspects:
            reason = f"warm-up: {suspect.reason}"
            draft.emit(Withheld, mechanism=WARM_UP, rung=Rung.EVICT, node=suspect.node, reason=reason)
        suspects = ()
    if suspects and is_started:
        handle_failure(draft, _failure(state, suspects))
    elif suspects:
        replace_when_possible(draft, _failure(state, suspects), WARM_UP)
    judge_held(draft)


def _failure(state: JobState, suspects: Sequence[SuspectNode]) -> Failure:
    """Return the failure of all unfit nodes: they are replaced together."""
    text = "; ".join(f"the warm-up finds {suspect.node} unfit: {suspect.reason}" for suspect in suspects)
    of_link = suspects[0] if len(suspects) == 1 else None
    return Failure(
        symptom=Symptom.NODE_UNFIT,
        named=suspects[0].symptom,
        root=Root.INFRASTRUCTURE,
        generation=state.generation,
        step=state.step,
        text=text,
        node=suspects[0].node,
        group=tuple(suspect.node for suspect in suspects),
        evidence=tuple(dict.fromkeys(event for suspect in suspects for event in suspect.evidence)),
        of_warm_up=True,
        link=of_link.link if of_link else None,
        is_guess=of_link is not None and of_link.is_guess,
        # A device that computes wrongly spoils the state of all: better no job than such a one.
        is_urgent=any(suspect.reason.startswith(DEVICES) for suspect in suspects),
    )


def _share(draft: JobDraft, found: SharedFinding) -> None:
    key = f"{shared_faults.WARM_UP}/{found.thing}"
    shared_faults.note(draft, key, found.thing, found.symptom, found.nodes, f"warm-up: {found.reason}")


def _update(draft: JobDraft, **changes: object) -> None:
    assert draft.state.warm_up is not None
    draft.update_phase(warm_up=msgspec.structs.replace(draft.state.warm_up, **changes))


def is_due(state: JobState, now: datetime, hearing_since: datetime) -> bool:
    """Return True once it has taken as long as it may, and the controller was connected all the time."""
    progress = state.warm_up
    if progress is None or progress.is_judged:
        return False
    return now - max(progress.since, hearing_since) >= progress.until - progress.since
