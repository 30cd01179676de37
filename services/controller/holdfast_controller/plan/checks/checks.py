"""Stop-time checks of a job's nodes: training stands still, and ranks of another program test them (ByteRobust §4.2).

A run of checks is a generation like any other: fenced, started by the agents from their warm zygotes, and ended by the
next order. Its results come as evidence while it goes on; when every node is over, or time is, the ladder goes on.
"""

from __future__ import annotations

import msgspec

from holdfast.engines.checks.checks_verdict import Verdict, answered, judge, why_silent
from holdfast.engines.checks.references import agreed
from holdfast.events import ChecksEnded, DiagnosticResult, ProcessExited
from holdfast.events.parts.ranks import Suspect
from holdfast_controller.plan.draft import Draft
from holdfast_controller.plan.incident.ladder import named_by_checks, named_by_link, within_limits
from holdfast_controller.plan.incident.recovery import Rules, act, chosen


def found(draft: Draft, event: DiagnosticResult, rules: Rules) -> None:
    """One test on one node is over; the last one says that all are."""
    state, checks = draft.state, draft.state.checks
    if checks is None or event.generation != state.generation or event.node not in state.nodes:
        return
    # Not the end of its ranks, which may be heard of before their results.
    over = checks.over | answered([event])
    draft.state = state.update(checks=msgspec.structs.replace(checks, results=(*checks.results, event), over=over))
    _conclude_if_over(draft, rules)


def broke_off(draft: Draft, event: ProcessExited, rules: Rules) -> None:
    """The program of a node's checks has ended badly."""
    state, checks = draft.state, draft.state.checks
    if checks is None or event.node not in state.nodes:
        return
    assert event.node is not None
    died = {event.node: why, **checks.died} if (why := why_silent(event)) else checks.died
    over = checks.over | {event.node}
    draft.state = state.update(checks=msgspec.structs.replace(checks, died=died, over=over))
    _conclude_if_over(draft, rules)


def overdue(draft: Draft, rules: Rules) -> None:
    """Time is over for the nodes that have not answered."""
    _conclude(draft, rules)


def _conclude_if_over(draft: Draft, rules: Rules) -> None:
    if draft.state.checks is not None and draft.state.checks.over >= set(draft.state.nodes):
        _conclude(draft, rules)


def _conclude(draft: Draft, rules: Rules) -> None:
    state, checks = draft.state, draft.state.checks
    assert checks is not None and state.incident is not None
    took_s = (draft.now - checks.began_at).total_seconds()
    silent = {node: f"it had not answered after {took_s:.0f} s" for node in state.nodes if node not in checks.over}
    verdict = judge(state.nodes, checks.results, silent | checks.died, draft.references)
    if not verdict.unresolved and not verdict.capped:
        found = agreed(checks.results, {suspect.node for suspect in verdict.suspects})
        draft.learned = tuple(one for one in found if draft.references.get(one.key) != one.digest)
    suspects = tuple(
        Suspect(node=suspect.node, symptom=suspect.symptom, reason=suspect.reason) for suspect in verdict.suspects
    )
    draft.say(ChecksEnded, suspects=suspects, took_s=took_s, reason=_in_words(verdict))
    failure = checks.failure
    incident = msgspec.structs.replace(state.incident, checked=frozenset(state.nodes))
    draft.state = state.update(incident=incident, checks=None, awaiting=None)
    choice = named_by_checks(failure, suspects, frozenset(state.nodes))
    choice = choice or named_by_link(incident, failure, verdict.links, state.nodes)
    if choice is None:
        choice = chosen(draft, incident, failure, rules)
        choice = msgspec.structs.replace(choice, reason=f"{choice.reason}; stop-time checks name nobody")
    act(draft, failure, within_limits(choice, incident, failure, rules.ladder), rules)


def _in_words(verdict: Verdict) -> str:
    if verdict.capped:
        return verdict.capped
    said = [f"{suspect.node}: {suspect.reason}" for suspect in verdict.suspects]
    said += [f"not clear: {doubt.reason}" for doubt in verdict.unresolved]
    if verdict.untested:
        said.append(f"not tested: {', '.join(verdict.untested)}")
    return "; ".join(said) or f"all {len(verdict.cleared)} nodes passed"
