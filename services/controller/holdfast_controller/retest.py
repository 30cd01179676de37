"""Tests of nodes that were evicted together, beside training: who was at fault, and who may come back. Pure.

Where the evidence names several nodes of which one is at fault, all of them go: that costs standbys, not time
(ByteRobust §5.1 evicts the whole parallel group). A run of checks of those nodes follows as a job of its own. Who
passes leaves the blocklist; whoever fails, is in doubt or does not answer stays on it.

Whoever was evicted for being slow is tested beside free nodes of the pool, if there are any, and comes back if it is
as fast as they are (`holdfast.diagnosis.speeds`).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from holdfast.diagnosis.program import checks_of
from holdfast.diagnosis.speeds import with_speeds
from holdfast.diagnosis.suites import SLOW, suite_for
from holdfast.diagnosis.verdict import Verdict, answered, judge, why_silent
from holdfast.event_parts import Grant, JobSpec, Suspect
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
from holdfast.ids import derived_id
from holdfast.timeouts import Timeouts
from holdfast_controller.draft import Draft, Outcome
from holdfast_controller.incident import Symptom
from holdfast_controller.state import LIVE, OVER, Ending, JobPhase, JobState, Retest
from holdfast_controller.submission import masked, new_job

ASKED_BY = "the controller"
BESIDE = 2
"""Free nodes that those evicted for being slow are compared with."""


def follow_up(events: Sequence[Event], of: JobState, now: datetime, timeouts: Timeouts) -> Outcome | None:
    """The job that tests the nodes which these events evicted together; None: there are none."""
    eviction = next((event for event in events if isinstance(event, Eviction) and event.together), None)
    if eviction is None or eviction.incident is None:
        return None
    incident = of.incident
    is_slow = incident is not None and incident.symptom is Symptom.SLOW
    suite = SLOW if is_slow else suite_for(incident.shown_as if incident else "")
    spec = _checks(of.spec, f"retest-{eviction.id[-12:]}", eviction.together, suite)
    retest = Retest(
        job=of.job,
        incident=eviction.incident,
        nodes=eviction.together,
        for_speed=is_slow,
        beside=BESIDE if is_slow else 0,
    )
    draft = Draft(new_job(spec, now).update(retest=retest), derived_id(eviction.id, "retest"), now, timeouts)
    reason = f"{', '.join(retest.nodes)} were evicted together from {retest.job}: one of them is at fault"
    if len(retest.nodes) == 1:
        reason = f"{retest.nodes[0]} was evicted from {retest.job} for being slow, which may have passed"
    draft.say(JobSubmitted, spec=masked(spec), reason=f"asked by {ASKED_BY}: {reason}")
    draft.claim("the tests need the nodes")
    return draft.outcome()


def joined(draft: Draft, event: NodesGranted) -> None:
    """Others come with those that are to be tested: there is a place for each."""
    state = draft.state
    if state.retest is None or state.phase is not JobPhase.CLAIMING or event.claim != state.claim:
        return
    here = (grant.node for grant in event.grants if grant.epoch > state.lost_before_granted.get(grant.node, -1))
    beside = tuple(node for node in here if node not in state.spec.only_nodes)
    spec = _of_nodes(state.spec, (*state.spec.only_nodes, *beside))
    draft.state = state.update(spec=spec, members=(*state.members, *(None,) * len(beside)))


def awaited(draft: Draft, event: NodesAwaited) -> None:
    """Not all suspects can be had: the word of their eviction may be on its way, or they are gone."""
    state = draft.state
    if state.retest is None or event.claim != state.claim or not event.missing_nodes:
        return
    draft.state = state.update(retest=msgspec.structs.replace(state.retest, missing=event.missing_nodes))
    if state.awaiting is None:
        draft.await_("nodes_granted", draft.timeouts.start_s)


def unclaimed(draft: Draft) -> None:
    """Some suspects are not there: the others are tested without them."""
    state = draft.state
    assert state.retest is not None
    here = tuple(node for node in state.spec.only_nodes if node not in state.retest.missing)
    if not set(here) & set(state.retest.nodes):
        draft.end(Ending(phase=JobPhase.FAILED, reason="none of the suspects is there to be tested", exit_code=1))
        return
    draft.state = state.update(spec=_of_nodes(state.spec, here), members=tuple(map(state.member, here)))
    reason = f"the tests go on without {', '.join(state.retest.missing)}"
    if draft.state.vacancies:
        draft.claim(reason)
        return
    draft.order_start(reason)
    draft.await_("ranks_started", draft.timeouts.start_s)


def without(state: JobState, lost: Grant) -> JobState:
    """A run of checks that goes on without a node: one that only came along is not waited for."""
    if state.retest is None or lost.node in state.retest.nodes or state.phase is not JobPhase.CLAIMING:
        return state.update(members=tuple(None if member is lost else member for member in state.members))
    spec = _of_nodes(state.spec, tuple(node for node in state.spec.only_nodes if node != lost.node))
    return state.update(spec=spec, members=tuple(member for member in state.members if member is not lost))


def heard(draft: Draft, event: Event) -> None:
    """What a suspect answers, or why it does not."""
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
    verdict = judge(retest.nodes, retest.results, silent, draft.references)
    if retest.for_speed:
        verdict = with_speeds(verdict, retest.nodes, retest.results)
    draft.say(
        SuspectsTested,
        job=retest.job,
        incident=retest.incident,
        generation=None,
        run=state.job,
        cleared=verdict.cleared,
        at_fault=tuple(Suspect(node=it.node, symptom=it.symptom, reason=it.reason) for it in verdict.suspects),
        in_doubt=_in_doubt(retest.nodes, verdict),
        reason=_in_words(verdict),
    )
    held = {member.node: member.epoch for member in before.members if member}
    for node in verdict.cleared:
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


def _of_nodes(spec: JobSpec, nodes: tuple[str, ...]) -> JobSpec:
    return msgspec.structs.replace(spec, only_nodes=nodes, nnodes=len(nodes))


def _checks(of: JobSpec, name: str, nodes: tuple[str, ...], suite: str) -> JobSpec:
    bare = JobSpec(
        name=name,
        script=of.script,
        nnodes=len(nodes),
        nproc_per_node=of.nproc_per_node,
        only_nodes=nodes,
        cwd="/",
        directory=f"{of.directory.rstrip('/').rpartition('/')[0]}/{name}",
        persist_every="never",
    )
    return checks_of(bare, suite)


def _in_doubt(nodes: Sequence[str], verdict: Verdict) -> tuple[str, ...]:
    named = {*verdict.cleared, *(suspect.node for suspect in verdict.suspects)}
    return tuple(node for node in nodes if node not in named)


def _in_words(verdict: Verdict) -> str:
    said = [f"{suspect.node} is at fault: {suspect.reason}" for suspect in verdict.suspects]
    said += [f"not clear: {doubt.reason}" for doubt in verdict.unresolved]
    if verdict.untested:
        said.append(f"not tested: {', '.join(verdict.untested)}")
    if verdict.cleared:
        said.append(f"passed: {', '.join(verdict.cleared)}")
    return "; ".join(said)
