"""Tests of nodes that were evicted together, beside training: who was at fault, and who may come back. Pure.

Where the evidence names several nodes of which one is at fault, all of them go: that costs standbys, not time
(ByteRobust §5.1 evicts the whole parallel group). A run of checks of those nodes follows as a job of its own. Who
passes leaves the blocklist; whoever fails, is in doubt or does not answer stays on it.

Free nodes of the pool come with them as witnesses, and are given back. Where a connection fails, two nodes cannot tell
each other's fault from their own: one or two suspects are not tested without a witness. If both can be used with others
and their link alone fails, one of them may come back. Whoever was slow comes back if it is as fast as the others
(`holdfast.engines.checks.speeds`).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from holdfast.engines.checks.checks_program import checks_of
from holdfast.engines.checks.checks_verdict import NETWORK_SYMPTOM, Verdict, answered, judge, why_silent
from holdfast.engines.checks.speeds import with_speeds
from holdfast.engines.checks.suites import SLOW, suite_for
from holdfast.events import (
    DiagnosticResult,
    Event,
    Eviction,
    EvictionRevoked,
    JobSubmitted,
    NodeDeparted,
    NodeLost,
    NodesAwaited,
    NodesGranted,
    ProcessExited,
    SuspectsTested,
)
from holdfast.events.parts.job import Grant, JobSpec
from holdfast.events.parts.ranks import Suspect
from holdfast.ids import derived_id
from holdfast.settings.timeouts import Timeouts
from holdfast_controller.plan.draft import Draft, Outcome
from holdfast_controller.plan.incident.incident import Symptom
from holdfast_controller.plan.job import LIVE, OVER, Ending, JobPhase, JobState, Retest
from holdfast_controller.plan.submission import masked, new_job

ASKED_BY = "the controller"

ALONE_MIN = 3
"""So many suspects can tell a bad node from a bad partner among themselves."""

COMPARED_WITH = 2
"""Witnesses that those evicted for being slow are compared with."""


def follow_up(events: Sequence[Event], of: JobState, now: datetime, timeouts: Timeouts) -> Outcome | None:
    """The job that tests the nodes which these events evicted together; None: there are none."""
    eviction = next((event for event in events if isinstance(event, Eviction) and event.together), None)
    if eviction is None or eviction.incident is None:
        return None
    incident = of.incident
    is_slow = incident is not None and incident.symptom is Symptom.SLOW
    retest = Retest(
        job=of.job,
        incident=eviction.incident,
        nodes=eviction.together,
        for_speed=is_slow,
        witnesses=COMPARED_WITH if is_slow else int(len(eviction.together) < ALONE_MIN),
    )
    suite = SLOW if is_slow else suite_for(incident.shown_as if incident else "")
    spec = _checks(of.spec, f"retest-{eviction.id[-12:]}", retest, suite)
    draft = Draft(new_job(spec, now).update(retest=retest), derived_id(eviction.id, "retest"), now, timeouts)
    why = "for being slow, which may have passed" if is_slow else "for what may not be their fault"
    reason = f"{', '.join(retest.nodes)} had to leave {retest.job} {why}"
    draft.say(JobSubmitted, spec=masked(spec), reason=f"asked by {ASKED_BY}: {reason}")
    draft.claim("the tests need the nodes")
    return draft.outcome()


def joined(draft: Draft, event: NodesGranted) -> None:
    """There is a place for each node that comes, also one of an earlier claim, and for witnesses in front."""
    state, retest = draft.state, draft.state.retest
    if retest is None or state.phase is not JobPhase.CLAIMING:
        return
    new = [grant.node for grant in event.grants if grant.epoch > state.lost_before_granted.get(grant.node, -1)]
    there = dict.fromkeys((*state.nodes, *new))
    back = (node for node in new if node in retest.nodes)
    only = tuple(dict.fromkeys((*state.spec.only_nodes, *back)))
    draft.state = _with_places(state, only, len(retest.witnesses_among(there)))


def awaited(draft: Draft, event: NodesAwaited) -> None:
    """Not all suspects can be had, or no witness: the word of their eviction may be on its way, or they are gone."""
    state = draft.state
    if state.retest is None or event.claim != state.claim:
        return
    draft.state = state.update(retest=msgspec.structs.replace(state.retest, missing=event.missing_nodes))
    if state.awaiting is None:
        draft.await_("nodes_granted", draft.timeouts.start_s)


def unclaimed(draft: Draft) -> None:
    """Some suspects are not there, or no witness: the others are tested without them."""
    state, retest = draft.state, draft.state.retest
    assert retest is not None
    missing = tuple(node for node in retest.missing if state.member(node) is None)
    here = tuple(node for node in state.spec.only_nodes if node not in missing)
    if not here:
        draft.end(Ending(phase=JobPhase.FAILED, reason="none of the suspects is there to be tested", exit_code=1))
        return
    witnesses = len(retest.witnesses_among(state.nodes))
    if not missing:
        # Where suspects are missing, a witness may be there; where none is, it is the witness that is missing.
        if not witnesses and len(here) == 1:
            reason = f"no other node is free to test {here[0]} with"
            draft.end(Ending(phase=JobPhase.FAILED, reason=reason, exit_code=1))
            return
        state = state.update(retest=msgspec.structs.replace(retest, witnesses=witnesses))
    draft.state = _with_places(state, here, witnesses)
    reason = f"the tests go on without {', '.join(missing) or 'a witness'}"
    if draft.state.vacancies:
        draft.claim(reason)
        return
    draft.order_start(reason)
    draft.await_("ranks_started", draft.timeouts.start_s)


def without(state: JobState, lost: Grant) -> JobState:
    """A run of checks that goes on without a node: a witness that is not needed is not waited for."""
    left = state.update(members=tuple(None if member is lost else member for member in state.members))
    if state.retest is None or state.phase is not JobPhase.CLAIMING:
        return left
    return _with_places(left, state.spec.only_nodes, len(state.retest.witnesses_among(left.nodes)))


def heard(draft: Draft, event: Event) -> None:
    """What a suspect or a witness answers, or why it does not."""
    state = draft.state
    retest = state.retest
    if retest is None or event.node is None or event.node not in {*retest.nodes, *state.nodes}:
        return
    if isinstance(event, DiagnosticResult) and event.generation == state.generation:
        retest = msgspec.structs.replace(retest, results=(*retest.results, event))
    elif isinstance(event, ProcessExited):
        retest = msgspec.structs.replace(retest, died={event.node: why_silent(event), **retest.died})
    elif isinstance(event, NodeLost):
        why = f"nothing was heard of it for {event.silent_s:.1f} s"
        retest = msgspec.structs.replace(retest, died={event.node: why, **retest.died})
    elif isinstance(event, NodeDeparted):
        retest = msgspec.structs.replace(retest, died={event.node: "", **retest.died})
    if retest is not state.retest:
        draft.state = state.update(retest=retest)
        complete_if_over(draft)


def all_told(state: JobState) -> bool:
    """Whether nothing more will be heard of the suspects: the end of a node's ranks may come before its results."""
    retest = state.retest
    return retest is None or answered(retest.results) | retest.died.keys() >= set(state.nodes)


def complete_if_over(draft: Draft) -> None:
    """A run of checks is over when the processes of all nodes have ended, and what they said has been heard."""
    state = draft.state
    if state.phase in LIVE and state.finished >= set(state.nodes) and all_told(state):
        draft.complete("the checks are over on every node that is left")


def conclude_if_over(draft: Draft, before: JobState) -> None:
    """The tests have come to their end: say who is at fault, and take those that passed off the blocklist."""
    state, retest = draft.state, draft.state.retest
    ended = JobPhase.STOPPING, *OVER
    if retest is None or before.phase in ended or state.phase not in ended:
        return
    # Who could not be had was asked nothing.
    silent = dict.fromkeys(before.nodes, "it did not answer") | retest.died
    silent = {node: why for node, why in silent.items() if why and node not in answered(retest.results)}
    tested = tuple(dict.fromkeys((*before.nodes, *retest.nodes)))
    verdict = judge(tested, retest.results, silent, draft.references)
    verdict = msgspec.structs.replace(verdict, cleared=tuple(it for it in retest.nodes if it in verdict.cleared))
    cleared = verdict.cleared + _one_of_a_link(retest.nodes, verdict)
    if retest.for_speed:
        verdict = with_speeds(verdict, retest.nodes, retest.results)
        cleared = verdict.cleared
    at_fault = _at_fault(retest.nodes, verdict)
    draft.say(
        SuspectsTested,
        job=retest.job,
        incident=retest.incident,
        generation=None,
        run=state.job,
        cleared=cleared,
        at_fault=at_fault,
        in_doubt=_in_doubt(retest.nodes, cleared, at_fault),
        reason=_in_words(verdict, cleared, at_fault, retest.witnesses_among(tested)),
    )
    held = {member.node: member.epoch for member in before.members if member}
    for node in cleared:
        if node in held:
            draft.say(
                EvictionRevoked,
                job=retest.job,
                incident=retest.incident,
                generation=None,
                node=node,
                epoch=held[node],
                reason=f"it passed the tests that followed its eviction ({state.job})",
            )


def _with_places(state: JobState, only: tuple[str, ...], witnesses: int) -> JobState:
    """A run of checks with places for these suspects, and for these and the needed witnesses: they come first."""
    assert state.retest is not None
    witnesses = max(witnesses, state.retest.witnesses_needed)
    spec = msgspec.structs.replace(state.spec, only_nodes=only, nnodes=len(only) + witnesses, witnesses=witnesses)
    held = sorted(filter(None, state.members), key=lambda member: member.node in only)
    vacant = (None,) * (spec.nnodes - len(held))
    first = sum(member.node not in only for member in held)
    return state.update(spec=spec, members=(*held[:first], *vacant, *held[first:]))


def _checks(of: JobSpec, name: str, retest: Retest, suite: str) -> JobSpec:
    bare = JobSpec(
        name=name,
        script=of.script,
        nnodes=len(retest.nodes) + retest.witnesses_needed,
        witnesses=retest.witnesses_needed,
        nproc_per_node=of.nproc_per_node,
        only_nodes=retest.nodes,
        cwd="/",
        directory=f"{of.directory.rstrip('/').rpartition('/')[0]}/{name}",
        persist_every="never",
    )
    return checks_of(bare, suite)


def _one_of_a_link(nodes: Sequence[str], verdict: Verdict) -> tuple[str, ...]:
    """Of two nodes that only cannot use the link between them, one: nobody needs that link if the other stays out."""
    pair = verdict.lone_links[0] if len(verdict.lone_links) == 1 else ()
    return (pair[0],) if pair and set(pair) <= set(nodes) else ()


def _at_fault(nodes: Sequence[str], verdict: Verdict) -> tuple[Suspect, ...]:
    """Those that the tests name; and a suspect that cannot reach a node that nobody suspects, in doubt."""
    named = [Suspect(node=it.node, symptom=it.symptom, reason=it.reason) for it in verdict.suspects if it.node in nodes]
    for link in verdict.links:
        suspects = [node for node in link if node in nodes]
        if len(suspects) == 1:
            (other,) = set(link) - set(suspects)
            reason = f"it cannot reach {other}, which nobody suspects"
            named.append(Suspect(node=suspects[0], symptom=NETWORK_SYMPTOM, reason=reason))
    return tuple(named)


def _in_doubt(nodes: Sequence[str], cleared: Sequence[str], at_fault: Sequence[Suspect]) -> tuple[str, ...]:
    named = {*cleared, *(suspect.node for suspect in at_fault)}
    return tuple(node for node in nodes if node not in named)


def _in_words(verdict: Verdict, cleared: Sequence[str], at_fault: Sequence[Suspect], witnesses: Sequence[str]) -> str:
    said = [f"{suspect.node} is at fault: {suspect.reason}" for suspect in at_fault]
    said += [f"{it.node}, a witness, fails: {it.reason}" for it in verdict.suspects if it.node in witnesses]
    said += [f"not clear: {doubt.reason}" for doubt in verdict.unresolved]
    if verdict.untested:
        said.append(f"not tested: {', '.join(verdict.untested)}")
    if cleared:
        said.append(f"may come back: {', '.join(cleared)}")
    if witnesses:
        said.append(f"tested with {', '.join(witnesses)}")
    return "; ".join(said)
