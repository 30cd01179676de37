"""The rungs of the ladder, taken: what each does to the job, its nodes and its incident."""

from __future__ import annotations

from datetime import timedelta

import msgspec

from holdfast.engines.record.history import MarkKind
from holdfast.events import BreakerOpened, Eviction, EvictionRevoked, Reattempt, Withheld
from holdfast.events.parts.job import Grant
from holdfast.symptoms import Symptom
from holdfast_controller.plan.code.updates import roll_back
from holdfast_controller.plan.doubt import group_guesses
from holdfast_controller.plan.doubt.doubt_records import SUSPECTS_TESTED_MIN, Convict, Replacement, leaving
from holdfast_controller.plan.draft import JobDraft
from holdfast_controller.plan.evidence.blame import explained_by, trait
from holdfast_controller.plan.incident import breaker
from holdfast_controller.plan.incident.incident import Evicted, FailedLink, Failure, Incident, Proof, Rung, RungTaken
from holdfast_controller.plan.incident.ladder import next_rung, pause_s, within_limits
from holdfast_controller.plan.incident.rung_choice import (
    CHECKS,
    HANGS,
    INSPECTIONS,
    REPLAYS,
    WARM_UP,
    LadderOptions,
    RungChoice,
)
from holdfast_controller.plan.phase import JobOutcome
from holdfast_controller.plan.record.accusations import ACCUSATIONS, accused_max, is_full
from holdfast_controller.plan.record.finding import earlier_evictions
from holdfast_controller.plan.record.noting import note, note_cleared, record_of, strike_incident
from holdfast_controller.plan.replay_scope import first_phase
from holdfast_controller.plan.transitions import (
    POOL_ANSWERS_S,
    become_checking,
    become_claiming,
    become_replaying,
    become_starting,
    become_stopping,
    become_waiting,
)

ABSENT = frozenset({Symptom.NODE_LOST, Symptom.START_TIMEOUT})
"""Symptoms of a node that is lost or does not answer: it is replaced in any case, as the job cannot train without."""

BLOCKS_MAX = 3
"""Times `block_s` for which a node is blocked that was evicted before: what is broken was not repaired meanwhile."""

RUNGS_TAKEN_MAX = 32
"""Rungs that an incident remembers; its events are all in the history."""


def take(draft: JobDraft, failure: Failure, choice: RungChoice, options: LadderOptions) -> None:
    """Take the rung. If the circuit breaker withholds an eviction, start the ranks again in place."""
    incident, policy = draft.incident, draft.rules.ladder
    if choice.rung is Rung.EVICT and failure.symptom not in ABSENT and not may_evict(draft, choice):
        if choice.mechanism == WARM_UP and failure.rank is None:
            return  # The start goes on: to begin it again would show the same.
        reason = f"{choice.reason}; the eviction was withheld"
        choice = msgspec.structs.replace(choice, rung=Rung.REATTEMPT, nodes=(), reason=reason)
        choice = within_limits(choice, incident, failure, options, policy)
    if choice.asks_first and choice.rung is Rung.EVICT and len(draft.state.spares) < len(choice.nodes):
        _ask_first(draft, failure, choice)
        return
    _note(draft, failure, choice, options)
    match choice.rung:
        case Rung.STOP:
            _stop(draft, failure, choice.reason)
        case Rung.REATTEMPT:
            draft.emit(Reattempt, attempt=incident.attempts + 1, node=failure.node, reason=choice.reason)
            become_starting(draft, f"restart in place: {choice.reason}")
        case Rung.WAIT:
            limit_s = choice.pause_s or pause_s(len(incident.paused), policy)
            become_waiting(draft, failure.generation, limit_s, choice.reason, choice.nodes)
        case Rung.ROLLBACK:
            roll_back(draft, choice.reason)
            strike_incident(draft, incident.blamed, "the code was rolled back for it")
            # A job that waits for nodes goes back when they have come.
            if not draft.state.vacancies:
                become_starting(draft, f"roll the code back: {choice.reason}")
        case Rung.CHECKS:
            become_checking(draft, failure, choice.suite, choice.reason)
        case Rung.REPLAY:
            replay = first_phase(draft.state, failure, draft.now, policy, draft.rules.timeouts)
            become_replaying(draft, replay, choice.reason)
        case Rung.EVICT:
            _evict(draft, failure, choice)
        case Rung.REPLACE:
            draft.release(tuple(filter(None, map(draft.state.member, choice.nodes))), choice.reason)
            _replace(draft, choice)


def _ask_first(draft: JobDraft, failure: Failure, choice: RungChoice) -> None:
    """Request nodes in the place of those that are to leave; the decision follows with the answer.

    One that only its rank or process accuses, or its numbers, leaves if one more is free: without a witness it could
    not be tested. One that its record convicts leaves all the same.
    """
    is_alone = failure.proof is Proof.CLAIMED or (failure.is_known_hang and len(choice.nodes) == 1)
    is_apart = is_alone or failure.bad_step is not None or 0 < len(failure.suspects) < SUSPECTS_TESTED_MIN
    needs_witness = is_apart and not choice.is_convicted
    reason = f"to replace {', '.join(choice.nodes)}; they leave once these are there: {choice.reason}"
    request = draft.request_nodes(reason, len(choice.nodes) + needs_witness)
    draft.update(
        replacement=Replacement(
            failure=failure,
            claim=request.id,
            incident="",
            until=draft.now + timedelta(seconds=POOL_ANSWERS_S),
            nodes=() if leaving(failure) else choice.nodes,
        )
    )


def may_evict(draft: JobDraft, choice: RungChoice) -> bool:
    """Return True if the circuit breaker allows it to evict these nodes, and if the job may still accuse any; otherwise
    emit that. A breaker that opens stays open."""
    state, policy = draft.state, draft.rules.ladder
    if choice.is_accusation and is_full(draft):
        why = f"{choice.reason}; nothing but ranks of its author has cost {accused_max(draft)} nodes or more lately"
        for node in choice.nodes:
            draft.emit(Withheld, mechanism=ACCUSATIONS, rung=choice.rung, node=node, reason=why)
        return False
    if not breaker.opens(state.evictions, state.spec.nnodes, draft.now, policy):
        if state.breaker_open_since is None:
            return True
    elif state.breaker_open_since is None:
        recent = len(breaker.counted(state.evictions, draft.now, policy))
        draft.emit(
            BreakerOpened,
            evictions=recent,
            window_s=policy.evictions_window_s,
            reason=f"machines were blamed {recent} times within {policy.evictions_window_s:.0f} s, and "
            f"evicting {', '.join(choice.nodes)} would exceed the limit of "
            f"{breaker.evictions_max(state.spec.nnodes, policy)}: evidence against so many machines is probably wrong",
        )
        draft.update(breaker_open_since=draft.now)
    for node in choice.nodes:
        draft.emit(Withheld, mechanism="breaker", rung=choice.rung, node=node, reason=choice.reason)
    return False


def pause_over(draft: JobDraft, why: str = "") -> None:
    """Start the ranks again: the service elsewhere that failed the job may be back, or the node that `why` names is."""
    incident = draft.incident
    reason = f"{why or f'pause {len(incident.paused)} is over'}: {incident.summary}"
    draft.emit(Reattempt, attempt=incident.attempts + 1, reason=reason)
    become_starting(draft, f"restart in place: {reason}")


def _note(draft: JobDraft, failure: Failure, choice: RungChoice, options: LadderOptions) -> None:
    incident, is_last = draft.incident, choice.rung is Rung.STOP
    taken = RungTaken(
        at=draft.now,
        generation=failure.generation,
        rung=choice.rung,
        reason=choice.reason,
        nodes=choice.nodes,
        evidence=tuple(dict.fromkeys((*failure.evidence, *choice.evidence))),
        next="" if is_last else next_rung(incident, failure, choice.rung, options, draft.rules.ladder),
    )
    draft.update_incident(taken=(*incident.taken, taken)[-RUNGS_TAKEN_MAX:])


def _stop(draft: JobDraft, failure: Failure, reason: str) -> None:
    _revoke(draft, failure, reason)
    error = failure.error
    exit_code, traceback = (error.exit_code, error.traceback) if error else (1, "")
    become_stopping(draft, JobOutcome.FAILED, reason, exit_code, traceback)


def _revoke(draft: JobDraft, failure: Failure, reason: str) -> None:
    """Take the nodes that were evicted for the same failure off the blocklist: they were not at fault."""
    seen = draft.incident.recurrences.get(trait(failure) or "")
    if seen is not None and len(showed := frozenset().union(*seen.by.values())) > 1:
        strike_incident(draft, sorted(showed), f"other nodes showed the same: {reason}")
    for node, evicted in sorted(draft.incident.evicted.items()):
        if failure.error and evicted.trait == failure.error.trait:
            draft.emit(EvictionRevoked, node=node, epoch=evicted.epoch, reason=reason)
            note_cleared(draft, node, reason)


def _exonerate(draft: JobDraft, incident: Incident, choice: RungChoice) -> None:
    """Unblock nodes that were evicted for a link of a node whose other links turn out to fail too."""
    for known in incident.links:
        if not choice.one_of and set(choice.nodes) & set(known.ends):
            for node, epoch in sorted(known.evicted.items()):
                if node not in choice.nodes:
                    draft.emit(EvictionRevoked, node=node, epoch=epoch, reason=choice.reason)
                    note_cleared(draft, node, choice.reason)


def _evict(draft: JobDraft, failure: Failure, choice: RungChoice) -> None:
    """Evict the chosen nodes and replace them. What an eviction proves or refutes is noted in the nodes' records, the
    incident and the breaker, for later decisions.
    """
    incident = draft.incident
    held = tuple(filter(None, map(draft.state.member, choice.nodes)))
    is_proven = _is_proven(draft, choice)
    evicted = dict(incident.evicted)
    for member in held:
        draft.emit(
            Eviction,
            node=member.node,
            epoch=member.epoch,
            blocked_for_s=_blocked_for_s(draft, failure, member.node),
            together=choice.nodes if choice.one_of else (),
            evidence=tuple(dict.fromkeys((*failure.evidence, *choice.evidence))),
            reason=choice.reason,
        )
        if failure.symptom not in ABSENT and not failure.lacks_path:
            peer = next((end for end in choice.link or () if end != member.node), "")
            note(
                draft,
                member.node,
                MarkKind.EVICTED,
                choice.reason,
                peer=peer,
                epoch=member.epoch,
                is_accusation=choice.is_accusation,
                is_tested=choice.one_of,
                author=draft.state.author if choice.is_accusation else "",
                symptom=failure.symptom_name,
                rank=failure.rank,
            )
        if (shows := trait(failure)) and not is_proven:
            evicted[member.node] = Evicted(epoch=member.epoch, trait=shows)
    if choice.mechanism == REPLAYS:
        _revoke(draft, failure, choice.reason)
    links = incident.links
    if choice.link is not None:
        _exonerate(draft, incident, choice)
        links = (*links, FailedLink(ends=choice.link, evicted={member.node: member.epoch for member in held}))
    draft.update_incident(evicted=evicted, links=links)
    if is_proven:
        draft.update(incident=explained_by(choice.nodes, draft.incident))
    if choice.mechanism == WARM_UP:
        # The start that follows is no further try with the same nodes.
        draft.update_incident(attempts=draft.incident.attempts - 1)
    if failure.symptom not in ABSENT and not failure.lacks_path:
        judgements = breaker.judgements(choice.nodes, draft.now)
        draft.update(evictions=(*draft.state.evictions, *judgements))
    if choice.one_of and choice.mechanism == HANGS and not failure.suspects:
        group_guesses.note(draft, failure, held)
    if choice.mechanism == INSPECTIONS:
        draft.update(convicted=(*_convicted_lately(draft), *(_convict(draft, member) for member in held)))
    _replace(draft, choice)


def _is_proven(draft: JobDraft, choice: RungChoice) -> bool:
    """Return True if tests or alerts show a fault of each node, and not only a comparison with other nodes."""
    if choice.mechanism == INSPECTIONS:
        return all(draft.state.alerts.get(node) for node in choice.nodes)
    return choice.mechanism in (CHECKS, WARM_UP) and not choice.one_of


def _blocked_for_s(draft: JobDraft, failure: Failure, node: str) -> float:
    """Return how long a node stays blocked. Silence proves nothing: a node that reports again is as good as any."""
    if failure.symptom is Symptom.NODE_LOST:
        return 0.0
    if failure.lacks_path and draft.rules.warm_up is not None:
        return draft.rules.warm_up.path_block_s
    is_slow = failure.symptom is Symptom.FAIL_SLOW
    earlier = 0 if is_slow else earlier_evictions(record_of(draft, node), draft.now, draft.rules.record)
    return draft.rules.timeouts.block_s * min(1 + earlier, BLOCKS_MAX)


def _convict(draft: JobDraft, member: Grant) -> Convict:
    known = draft.state.alerts.get(member.node, ())
    return Convict(node=member.node, epoch=member.epoch, at=draft.now, alerts=known)


def _convicted_lately(draft: JobDraft) -> tuple[Convict, ...]:
    window = timedelta(seconds=draft.rules.ladder.alerts_window_s)
    return tuple(it for it in draft.state.convicted if draft.now - it.at < window)


def _replace(draft: JobDraft, choice: RungChoice) -> None:
    become_claiming(draft, choice.nodes, f"{', '.join(choice.nodes)} left the job: {choice.reason}")
