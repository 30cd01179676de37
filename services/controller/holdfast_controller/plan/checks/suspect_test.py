"""The decisions about a test of suspects: nodes that were evicted together, and are tested beside training.

Where the evidence names several nodes of which one is at fault, all of them are evicted: that costs standbys, not time
(ByteRobust §5.1 evicts the whole parallel group). A run of checks of those nodes follows. Nodes that pass leave the
blocklist; those that fail, are in doubt or do not answer stay on it.

Free nodes of the pool are tested with them as witnesses, and are given back; those that fail leave the pool. Where a
connection fails, two nodes cannot tell each other's fault from their own: one or two suspects are not tested without a
witness.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from holdfast.engines.checks.checks_program import checks_of
from holdfast.engines.checks.checks_verdict import why_silent
from holdfast.engines.checks.suites import SLOW, suite_for
from holdfast.engines.record.history import MarkKind
from holdfast.events import (
    DeadlinePassed,
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
    RanksFinished,
    SuspectsTested,
)
from holdfast.events.parts.job import JobSpec
from holdfast.events.parts.ranks import Suspect
from holdfast.ids import derived_id
from holdfast.symptoms import Symptom
from holdfast_controller.plan import members
from holdfast_controller.plan.checks import checks_run
from holdfast_controller.plan.checks.suspect_verdict import GuessCost, judge_suspects
from holdfast_controller.plan.doubt.doubt_records import SUSPECTS_TESTED_MIN
from holdfast_controller.plan.draft import JobDecision, JobDraft, Rules
from holdfast_controller.plan.generation import note_finished
from holdfast_controller.plan.job import JobState, SuspectTest
from holdfast_controller.plan.phase import LIVE, Awaited, Claiming, Ended, JobOutcome, JobPhase, Stopping
from holdfast_controller.plan.record.noting import note, note_cleared
from holdfast_controller.plan.requests import masked, new_job
from holdfast_controller.plan.transitions import become_completed, become_starting, become_stopping

ASKED_BY = "the controller"

WITNESSES = 2
"""Most witnesses in a test of one or two nodes, or of slow ones. A witness that fails as the suspects do is at fault
itself only if another witness passes."""


def follow_up(events: Sequence[Event], of: JobState, now: datetime, rules: Rules) -> JobDecision | None:
    """Return the job that tests the nodes which these events evicted together; None if they evicted none."""
    eviction = next((event for event in events if isinstance(event, Eviction) and event.together), None)
    if eviction is None or eviction.incident is None:
        return None
    incident = of.incident
    is_slow = incident is not None and incident.symptom is Symptom.FAIL_SLOW
    test = SuspectTest(
        job=of.job,
        incident=eviction.incident,
        nodes=eviction.together,
        evicted_at=eviction.at,
        for_speed=is_slow,
        witnesses=WITNESSES if is_slow or len(eviction.together) < SUSPECTS_TESTED_MIN else 0,
    )
    suite = SLOW if is_slow else suite_for(incident.symptom_name if incident else "")
    spec = _spec(of.spec, f"retest-{eviction.id[-12:]}", test, suite)
    state, apart = new_job(spec, now).update(suspect_test=test), derived_id(eviction.id, "retest")
    draft = JobDraft(state, eviction.id, now, rules, apart=apart)
    why = "for being slow, which may have passed" if is_slow else "because one of them is at fault"
    reason = f"{', '.join(test.nodes)} left {test.job} {why}"
    draft.emit(JobSubmitted, spec=masked(spec), reason=f"asked by {ASKED_BY}: {reason}")
    draft.request_nodes("the tests need the nodes")
    return draft.decision()


def nodes_granted(draft: JobDraft, event: NodesGranted) -> None:
    """Make a place for each node that joins, also one of an earlier claim, and for witnesses in front."""
    state = draft.state
    if isinstance(state.phase, Claiming):
        test = _test(state)
        new = [grant.node for grant in event.grants if not members.is_gone(state, grant)]
        there = dict.fromkeys((*state.nodes, *new))
        back = (node for node in new if node in test.nodes)
        only = tuple(dict.fromkeys((*state.spec.only_nodes, *back)))
        draft.state = _with_places(state, only, len(test.witnesses_among(there)))
    members.nodes_granted(draft, event)


def nodes_awaited(draft: JobDraft, event: NodesAwaited) -> None:
    """Wait for a while: the event of a suspect's eviction may be on its way, or no witness is free."""
    state = draft.state
    if isinstance(state.phase, Claiming) and event.claim == state.claim:
        _update(draft, missing=event.missing_nodes)
        if state.phase.deadline is None:
            draft.update_phase(deadline=draft.deadline(Awaited.NODES, draft.rules.timeouts.start_s))
    members.nodes_awaited(draft, event)


def unclaimed(draft: JobDraft, _: DeadlinePassed) -> None:
    """Test the suspects at hand without those, or the witness, that cannot be had."""
    draft.update_phase(deadline=None)
    state, test = draft.state, _test(draft.state)
    missing = tuple(node for node in test.missing if state.member(node) is None)
    here = tuple(node for node in state.spec.only_nodes if node not in missing)
    if not here:
        become_stopping(draft, JobOutcome.FAILED, "no suspect could be granted for the test")
        return
    witnesses = len(test.witnesses_among(state.nodes))
    if not missing:
        # Where suspects are missing, a witness may be there; where none is, it is the witness that is missing.
        if not witnesses and len(here) == 1:
            become_stopping(draft, JobOutcome.FAILED, f"no free node to test {here[0]} with")
            return
        _update(draft, witnesses=witnesses)
    draft.state = _with_places(draft.state, here, witnesses)
    reason = f"the test continues without {', '.join(missing) or 'a witness'}"
    if draft.state.vacancies:
        draft.request_nodes(reason)
    else:
        become_starting(draft, reason)


def diagnostic_result(draft: JobDraft, event: DiagnosticResult) -> None:
    """Note a result of a node under test; complete the test if it was the last one."""
    if event.generation == draft.state.generation and _is_tested(draft.state, event.node):
        _update(draft, results=_test(draft.state).results.having(event))
        _complete_if_over(draft)


def rank_exited(draft: JobDraft, event: ProcessExited) -> None:
    """Note that the tests of a node ended; complete the run if all have ended."""
    state, phase = draft.state, draft.state.phase
    _died(draft, event.node, why_silent(event))
    if event.generation == state.generation and event.node in state.nodes and isinstance(phase, LIVE):
        draft.update_phase(finished=phase.finished | {event.node})
    _complete_if_over(draft)


def node_gone(draft: JobDraft, event: NodeLost | NodeDeparted) -> None:
    """Go on without a node that was lost, or whose agent was shut down. A lost witness is not waited for."""
    _died(draft, event.node, f"no heartbeat from it for {event.silent_s:.1f} s" if isinstance(event, NodeLost) else "")
    _complete_if_over(draft)
    if draft.state.is_over or (failure := members.departure(draft, event)) is None:
        return
    left = checks_run.vacated(draft.state, failure.node)
    if isinstance(left.phase, Claiming):
        left = _with_places(left, left.spec.only_nodes, len(_test(left).witnesses_among(left.nodes)))
    checks_run.go_on_without(draft, failure, left)
    _complete_if_over(draft)


def ranks_finished(draft: JobDraft, event: RanksFinished) -> None:
    """Note that the tests of a node are over. Their results may arrive after the end of its ranks."""
    if note_finished(draft, event) and _all_reported(draft.state):
        become_completed(draft, "every rank exited with code 0")


def conclude_if_over(draft: JobDraft, before: JobState) -> None:
    """Once the tests are over, emit which nodes are at fault, and take those that passed off the blocklist."""
    state, test = draft.state, _test(draft.state)
    if _is_ending(before.phase) or not _is_ending(state.phase):
        return
    found = judge_suspects(test, before.nodes, draft.rules.references)
    common = {"job": test.job, "incident": test.incident, "generation": None}
    took_s = (draft.now - (test.evicted_at or state.submitted_at)).total_seconds()
    cost = GuessCost(took_s=took_s, cleared=len(found.cleared), witnesses=len(test.witnesses_among(before.nodes)))
    about = {"job": test.job, "incident": test.incident, "generation": 0}
    draft.emit(
        SuspectsTested,
        **common,
        run=state.job,
        cleared=found.cleared,
        at_fault=found.at_fault,
        in_doubt=found.in_doubt,
        took_s=cost.took_s,
        pool_s=cost.pool_s,
        reason=f"{found.reason}; {cost.in_words(len(test.nodes))}",
    )
    for suspect in found.at_fault:
        note(draft, suspect.node, MarkKind.CONFIRMED, suspect.reason, symptom=suspect.symptom, **about)
    for witness in found.witnesses:
        _evict_witness(draft, before, witness)
    for node in found.cleared:
        reason = f"it passed the tests that followed its eviction ({state.job})"
        note_cleared(draft, node, reason, **about)
        if member := before.member(node):
            draft.emit(EvictionRevoked, **common, node=node, epoch=member.epoch, reason=reason)


def _evict_witness(draft: JobDraft, before: JobState, witness: Suspect) -> None:
    """Take a free node out of the pool that the tests of another one found to be at fault."""
    member, test = before.member(witness.node), _test(draft.state)
    if member is None:
        return
    reason = f"it failed as a witness of {draft.state.job}: {witness.reason}"
    about = {"job": test.job, "incident": "", "generation": 0}
    note(draft, witness.node, MarkKind.CHECKS_FAILED, reason, symptom=witness.symptom, **about)
    draft.emit(
        Eviction,
        node=witness.node,
        epoch=member.epoch,
        blocked_for_s=draft.rules.timeouts.block_s,
        incident=None,
        reason=reason,
    )


def _is_ending(phase: JobPhase) -> bool:
    return isinstance(phase, Stopping | Ended)


def _complete_if_over(draft: JobDraft) -> None:
    if checks_run.is_over(draft.state) and _all_reported(draft.state):
        become_completed(draft, checks_run.DONE)


def _all_reported(state: JobState) -> bool:
    test = _test(state)
    return all(node in test.died or test.results.has_all(node) for node in state.nodes)


def _is_tested(state: JobState, node: str | None) -> bool:
    return node in _test(state).nodes or node in state.nodes


def _died(draft: JobDraft, node: str | None, why: str) -> None:
    if node is not None and _is_tested(draft.state, node):
        _update(draft, died={node: why, **_test(draft.state).died})


def _test(state: JobState) -> SuspectTest:
    assert state.suspect_test is not None, f"job {state.job} is no test of suspects"
    return state.suspect_test


def _update(draft: JobDraft, **changes: object) -> None:
    draft.update(suspect_test=msgspec.structs.replace(_test(draft.state), **changes))


def _with_places(state: JobState, only: tuple[str, ...], witnesses: int) -> JobState:
    """Return the run with places for these suspects and `witnesses`, or as many as are needed; witnesses come first."""
    witnesses = max(witnesses, _test(state).witnesses_needed)
    spec = msgspec.structs.replace(state.spec, only_nodes=only, nnodes=len(only) + witnesses, witnesses=witnesses)
    held = sorted(filter(None, state.members), key=lambda member: member.node in only)
    vacant = (None,) * (spec.nnodes - len(held))
    first = sum(member.node not in only for member in held)
    return state.update(spec=spec, members=(*held[:first], *vacant, *held[first:]))


def _spec(of: JobSpec, name: str, test: SuspectTest, suite: str) -> JobSpec:
    bare = JobSpec(
        name=name,
        script=of.script,
        nnodes=len(test.nodes) + test.witnesses_needed,
        witnesses=test.witnesses_needed,
        nproc_per_node=of.nproc_per_node,
        only_nodes=test.nodes,
        cwd="/",
        directory=f"{of.directory.rstrip('/').rpartition('/')[0]}/{name}",
        persist_every="never",
    )
    return checks_of(bare, suite)
