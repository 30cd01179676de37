"""Stop-time checks of a job's nodes: training is paused, and ranks of another program test them (ByteRobust §4.2).

A run of checks is a generation like any other: fenced, started by the agents from their warm zygotes, and ended by the
next order. Results arrive one by one; when every node is done, or the time limit has passed, the ladder continues.
"""

from __future__ import annotations

import msgspec

from holdfast.engines.checks.checks_verdict import ChecksVerdict, ended, judge_checks, why_silent
from holdfast.engines.checks.references import agreed
from holdfast.engines.checks.suites import rest_s
from holdfast.events import ChecksEnded, DeadlinePassed, DiagnosticResult, ProcessExited
from holdfast.events.parts.ranks import Suspect
from holdfast_controller.plan.checks.conclusions import named_by_checks, named_by_link
from holdfast_controller.plan.doubt import hints
from holdfast_controller.plan.draft import JobDraft
from holdfast_controller.plan.incident.recovery import choose_rung, proceed
from holdfast_controller.plan.phase import Awaited, Checking
from holdfast_controller.plan.record.noting import note_checks


def diagnostic_result(draft: JobDraft, event: DiagnosticResult) -> None:
    """Note the result of one test on one node; the last one concludes the checks."""
    state, checks = draft.state, draft.state.checks
    if checks is None or event.generation != state.generation or event.node not in state.nodes:
        return
    assert event.node is not None
    # The end of its ranks does not count: its event may arrive before their results.
    results = checks.results.having(event)
    over = checks.over | {event.node} if results.has_all(event.node) else checks.over
    draft.update_phase(checks=msgspec.structs.replace(checks, results=results, over=over))
    _conclude_if_over(draft)


def rank_exited(draft: JobDraft, event: ProcessExited) -> None:
    """Note the end of a node's checks; conclude if no node's checks run any more."""
    state, checks = draft.state, draft.state.checks
    if checks is None or event.node not in state.nodes:
        return
    assert event.node is not None
    died = {event.node: why, **checks.died} if (why := why_silent(event)) else checks.died
    over = checks.over | {event.node}
    draft.update_phase(checks=msgspec.structs.replace(checks, died=died, over=over))
    _conclude_if_over(draft)


def overdue(draft: JobDraft, _: DeadlinePassed) -> None:
    _conclude(draft)


def _conclude_if_over(draft: JobDraft) -> None:
    state, checks = draft.state, draft.state.checks
    assert checks is not None and isinstance(state.phase, Checking)
    if state.are_all(checks.over):
        _conclude(draft)
    elif 2 * len(checks.over) > len(state.nodes):
        rest = draft.deadline(Awaited.CHECKS, rest_s(checks.suite, len(state.nodes)))
        if rest.until < state.phase.deadline.until:
            draft.update_phase(deadline=msgspec.structs.replace(state.phase.deadline, until=rest.until))


def _conclude(draft: JobDraft) -> None:
    state, checks = draft.state, draft.state.checks
    assert checks is not None and state.incident is not None
    took_s = (draft.now - checks.began_at).total_seconds()
    have_answered = ended(checks.results) | set(checks.over)
    silent = {node: f"it did not answer within {took_s:.0f} s" for node in state.nodes if node not in have_answered}
    verdict = judge_checks(state.nodes, checks.results, silent | checks.died, draft.rules.references)
    if not verdict.unresolved and not verdict.capped:
        found = agreed(checks.results, {suspect.node for suspect in verdict.suspects})
        draft.learned = tuple(one for one in found if draft.rules.references.get(one.key) != one.digest)
    suspects = tuple(
        Suspect(node=suspect.node, symptom=suspect.symptom, reason=suspect.reason) for suspect in verdict.suspects
    )
    draft.emit(ChecksEnded, suspects=suspects, took_s=took_s, reason=_summary(verdict))
    failure = checks.failure
    note_checks(draft, verdict.cleared, suspects)
    incident = msgspec.structs.replace(state.incident, checked=state.nodes.as_set)
    draft.update(incident=incident)
    draft.state = hints.answered(draft.state, verdict.cleared)
    choice = named_by_checks(failure, suspects, state.nodes.as_set)
    choice = choice or named_by_link(incident, failure, verdict.links, state.nodes)
    if choice is None:
        choice = choose_rung(draft, incident, failure)
        choice = msgspec.structs.replace(choice, reason=f"{choice.reason}; stop-time checks name no node")
    proceed(draft, failure, choice)


def _summary(verdict: ChecksVerdict) -> str:
    if verdict.capped:
        return verdict.capped
    parts = [f"{suspect.node}: {suspect.reason}" for suspect in verdict.suspects]
    parts += [f"not clear: {doubt.reason}" for doubt in verdict.unresolved]
    if verdict.untested:
        parts.append(f"not tested: {', '.join(verdict.untested)}")
    count = len(verdict.cleared)
    return "; ".join(parts) or ("the node passed" if count == 1 else f"all {count} nodes passed")
