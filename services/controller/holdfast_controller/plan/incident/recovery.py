"""The decision after a failure: open an incident or continue the open one, weigh the evidence, take a rung."""

from __future__ import annotations

import msgspec

from holdfast.events import IncidentDiagnosed, IncidentOpened, Withheld
from holdfast.symptoms import Symptom, row_of
from holdfast_controller.plan.code.updates import (
    can_roll_back,
    has_only_failures_of_present_code,
    is_of_present_code,
)
from holdfast_controller.plan.doubt import hints
from holdfast_controller.plan.doubt.doubt_records import Doubt, leaving
from holdfast_controller.plan.doubt.group_guesses import may_guess
from holdfast_controller.plan.draft import JobDraft
from holdfast_controller.plan.evidence.blame import blame
from holdfast_controller.plan.evidence.conclusion import conclude
from holdfast_controller.plan.evidence.explanation import EXPLAINED_BY, explanation, root_of
from holdfast_controller.plan.incident import alerts
from holdfast_controller.plan.incident.bad_numbers import recurring
from holdfast_controller.plan.incident.classify import FIRST_HAND_OF_NODE, OF_USER_CODE
from holdfast_controller.plan.incident.incident import Alert, Failure, Incident, Proof, Rung
from holdfast_controller.plan.incident.ladder import choose, user_error, within_limits
from holdfast_controller.plan.incident.rung_choice import RECORD, LadderOptions, RungChoice
from holdfast_controller.plan.incident.rungs import may_evict, take
from holdfast_controller.plan.job import JobState
from holdfast_controller.plan.loss import absent_nodes
from holdfast_controller.plan.phase import LIVE, Starting
from holdfast_controller.plan.record.accusations import awaits_tests, is_full, may_exchange, refute
from holdfast_controller.plan.record.finding import RecordFinding, finding
from holdfast_controller.plan.record.noting import is_one_of_many, note_failure, record_of
from holdfast_controller.plan.replay_scope import can_replay

ENDS = frozenset({Symptom.KILLED_BY_SIGNAL, Symptom.EXIT_CODE, Symptom.RANKS_VANISHED})
"""Symptoms which only show that a rank ended, without a reason."""

MECHANISMS = {
    Rung.CHECKS: ("stop_time_checks", "can_check"),
    Rung.REPLAY: ("replay", "can_replay"),
    Rung.ROLLBACK: ("rollback", "can_roll_back"),
}
"""Rungs whose mechanism can be set to only observe: the setting, and the option that the ladder then lacks."""


def handle_failure(draft: JobDraft, failure: Failure, incident: str = "") -> None:
    """Act on a failure of the generation that should run now. `incident`: id of the one that it opens, if it does."""
    own_name = failure.named
    failure = _explained(draft, failure)
    if failure.generation == draft.state.generation and failure.step > draft.state.step:
        draft.update(step=failure.step)
    if draft.state.incident is None:
        _open(draft, failure, incident or new_incident_id(draft))
    conclude(draft, failure.cause)
    choice = _weigh(draft, failure, own_name)
    if not ((choice.rung is Rung.REATTEMPT or choice.asks_first) and asks_for_others(draft, failure.generation)):
        proceed(draft, failure, choice)


def restart_unblamed(draft: JobDraft, failure: Failure) -> None:
    """Start the job again for a failure that is no node's, of a generation whose ranks show nothing any more."""
    if draft.state.incident is None:
        _open(draft, failure, new_incident_id(draft))
    draft.update_incident(untrained=draft.incident.untrained | {failure.generation})
    _take(draft, failure, RungChoice(rung=Rung.REATTEMPT, reason=failure.text))


def asks_for_others(draft: JobDraft, generation: int) -> bool:
    """Return True if the generation already waits for the pool's answer: its other ranks end as well, or the same is
    found again."""
    asked = draft.state.replacement
    return asked is not None and asked.until is not None and asked.failure.generation == generation


def is_of_incident(state: JobState, generation: int) -> bool:
    """Return True if the open incident gave up this generation."""
    return state.incident is not None and any(taken.generation == generation for taken in state.incident.taken)


def handle_late_failure(draft: JobDraft, failure: Failure) -> None:
    """Use evidence about a generation already given up: it may name the culprit, or show that going on is no use."""
    conclude(draft, failure.cause)
    choice = _weigh(draft, failure, failure.named)
    if choice.rung is Rung.EVICT and failure.node in draft.state.nodes:
        # An eviction that is withheld does not interrupt what was started since.
        if may_evict(draft, choice):
            _take(draft, failure, choice)
        return
    if choice.rung in (Rung.STOP, Rung.ROLLBACK):
        _take(draft, failure, choice)
        return
    starts_again = isinstance(draft.state.phase, Starting) and _is_of_last(draft, failure)
    if starts_again and (choice.rung is Rung.WAIT or (choice.rung is Rung.CHECKS and _has_hints(draft, failure))):
        # A partner's failure arrived first, and what was started after it would meet the same service, or machine. That
        # start and the next one count as one: a long outage is no series of failures.
        draft.update_incident(attempts=draft.incident.attempts - 1)
        _take(draft, failure, choice)
        return
    if choice.rung is Rung.CHECKS and failure.proof is Proof.CLAIMED and isinstance(draft.state.phase, LIVE):
        # What was started since runs on a machine that may be broken.
        proceed(draft, failure, choice)
        return
    checks = draft.state.checks
    if checks is None or not _is_cause_of(failure, checks.failure):
        return
    if choice.rung is Rung.CHECKS:
        # The checks go on, and the decision after them is about this failure.
        draft.update_phase(checks=msgspec.structs.replace(checks, failure=failure))
    else:
        proceed(draft, failure, choice)


def proceed(draft: JobDraft, failure: Failure, choice: RungChoice) -> None:
    """Take the rung, or stop the job if it would be one restart too many."""
    options = _options(draft, failure)
    _take(draft, failure, within_limits(choice, draft.incident, failure, options, draft.rules.ladder))


def choose_rung(draft: JobDraft, incident: Incident, failure: Failure) -> RungChoice:
    """Return the rung that `incident` asks for now. A rung whose mechanism only observes is emitted and passed over."""
    policy, options = draft.rules.ladder, _options(draft, failure)
    if failure.has_no_directory:
        # No restart and no other code changes that, and a person has to choose between the two jobs.
        return RungChoice(rung=Rung.STOP, reason=failure.text)
    if failure.lacks_steps:
        return absent_nodes.choose(draft.state, incident, failure, policy)
    if draft.rules.mechanisms.record == "observe":
        would = choose(incident, failure, msgspec.structs.replace(options, record=_record(draft, failure)), policy)
        if would.mechanism == RECORD:
            draft.emit(Withheld, mechanism=RECORD, rung=would.rung, node=failure.node, reason=would.reason)
    choice = choose(incident, failure, options, policy)
    while choice.rung in MECHANISMS and _only_observes(draft, choice.rung):
        mechanism, option = MECHANISMS[choice.rung]
        draft.emit(Withheld, mechanism=mechanism, rung=choice.rung, node=failure.node, reason=choice.reason)
        options = msgspec.structs.replace(options, **{option: False})
        choice = choose(incident, failure, options, policy)
    return choice


def _take(draft: JobDraft, failure: Failure, choice: RungChoice) -> None:
    options = _options(draft, failure)
    observed = {option: False for rung, (_, option) in MECHANISMS.items() if _only_observes(draft, rung)}
    take(draft, failure, choice, msgspec.structs.replace(options, **observed))


def _options(draft: JobDraft, failure: Failure) -> LadderOptions:
    state, rules = draft.state, draft.rules
    known = alerts.suspicions(state, failure.node, draft.now, rules.ladder)
    acts = rules.mechanisms.inspections == "act"
    return LadderOptions(
        members=state.nodes.as_set,
        alerts=tuple(alert for alert in known if acts and _counts(state, failure, alert)),
        hints=hints.about(state, failure, draft.now, rules.ladder) if acts else (),
        doubted=tuple(noted.failure for node, noted in state.doubts.items() if acts and _is_open(state, node, noted)),
        can_ask=isinstance(state.phase, LIVE),
        can_roll_back=can_roll_back(state, failure.generation),
        is_all_of_code=has_only_failures_of_present_code(state, draft.incident),
        code_failures=state.code.failures,
        can_replay=can_replay(state, rules.ladder),
        may_guess=may_guess(draft, failure),
        has_accused_enough=is_full(draft),
        may_exchange=may_exchange(draft, failure),
        awaits_tests=awaits_tests(draft),
        record=_record(draft, failure) if rules.mechanisms.record == "act" else None,
        past_bad_numbers=recurring.lately(draft) if failure.bad_step else (),
        restarts_max=state.restarts_left,
    )


def _record(draft: JobDraft, failure: Failure) -> RecordFinding | None:
    """Return what the record of the failed node adds to a failure that nothing explains."""
    counts = failure.symptom in FIRST_HAND_OF_NODE or failure.is_of_own_link
    if failure.node is None or not counts or failure.may_be_outage:
        return None
    return finding(record_of(draft, failure.node), draft.records, draft.now, draft.rules.record)


def _explained(draft: JobDraft, failure: Failure) -> Failure:
    """Return the failure under the name that an alert on its node gives it."""
    noted = draft.state.doubts.get(failure.node or "")
    if noted is None or failure.symptom not in FIRST_HAND_OF_NODE or draft.rules.mechanisms.inspections == "observe":
        return _named_by_alert(draft, failure)
    known = noted.failure
    evidence = (*failure.evidence, *known.evidence)
    return msgspec.structs.replace(failure, named=known.named, root=known.root, evidence=evidence)


def _named_by_alert(draft: JobDraft, failure: Failure) -> Failure:
    """Return the failure under the name that an alert gives it, if its own evidence has no reason."""
    # That a job is slow gives no reason, other names do.
    if failure.named not in ("", Symptom.MFU_DECLINE) or failure.symptom not in EXPLAINED_BY or failure.symptom in ENDS:
        return failure
    nodes = failure.suspects or leaving(failure)
    state, now, policy = draft.state, draft.now, draft.rules.ladder
    known = (it for node in nodes for it in alerts.suspicions(state, node, now, policy) if it.key not in state.shared)
    alert = explanation(failure.symptom, hints.without_common(state, known, now, policy))
    if alert is None:
        return failure
    evidence = (*failure.evidence, alert.event)
    text = f"{failure.text}; {alert.text}"
    return msgspec.structs.replace(failure, named=alert.symptom, root=root_of(alert), text=text, evidence=evidence)


def _counts(state: JobState, failure: Failure, alert: Alert) -> bool:
    """Return True if the alert may explain the failure of its node: others do not report the same."""
    if alert.key in state.shared:
        return False
    return alert.confidence == "tolerate" or (alert.confidence == "evict" and failure.node in state.doubts)


def _is_open(state: JobState, node: str, noted: Doubt) -> bool:
    return node in state.nodes and not noted.is_withheld


def _only_observes(draft: JobDraft, rung: Rung) -> bool:
    return bool(getattr(draft.rules.mechanisms, MECHANISMS[rung][0]) == "observe")


def _describes_better(failure: Failure, own_name: str, incident: Incident) -> bool:
    """Return True if the failure describes the incident better than the one it was opened for.

    That is a rank's own failure where so far a rank had only lost a partner; in the generation that failed first, a
    named cause where so far a rank had only ended; and a hang that itself shows a reason, where none is known so far.
    """
    if incident.symptom is failure.symptom is Symptom.HANG:
        # An alert may be about something else than the hangs before it.
        is_of_hang = bool(own_name) and failure.named == own_name
        return is_of_hang and not incident.named and incident.cause is None
    if incident.symptom is Symptom.PEER_LOST:
        return failure.symptom is not Symptom.PEER_LOST
    if incident.symptom is Symptom.EXIT_CODE and failure.generation in incident.early_ended:
        # Ranks that end early break nothing: what a node shows itself explains the lost partner.
        return failure.symptom in FIRST_HAND_OF_NODE
    is_of_first = bool(incident.taken) and failure.generation == incident.taken[0].generation
    is_bare = incident.symptom in ENDS and not incident.named
    return is_of_first and is_bare and failure.symptom in (Symptom.INFRASTRUCTURE_ERROR, Symptom.SERVICE_ELSEWHERE)


def _has_hints(draft: JobDraft, failure: Failure) -> bool:
    return bool(_options(draft, failure).hints)


def _is_of_last(draft: JobDraft, failure: Failure) -> bool:
    return failure.generation == draft.state.generation - 1


def _is_cause_of(failure: Failure, known: Failure) -> bool:
    """Return True if `known` is only the loss of a partner, and `failure` of the same generation explains it."""
    first_hand = FIRST_HAND_OF_NODE | OF_USER_CODE | {Symptom.SERVICE_ELSEWHERE}
    follows = known.symptom is Symptom.PEER_LOST
    return follows and failure.generation == known.generation and failure.symptom in first_hand


def new_incident_id(draft: JobDraft) -> str:
    return draft.fresh_id("incident")


def _open(draft: JobDraft, failure: Failure, incident_id: str) -> None:
    incident = Incident(
        id=incident_id,
        opened_at=draft.now,
        symptom=failure.symptom,
        named=failure.named,
        failed_step=failure.step,
        summary=failure.text,
    )
    if (settled := draft.state.settled) is not None:
        # A failure that recurs in the same place is the same failure, though its incident was closed.
        error = settled.user_error
        incident = msgspec.structs.replace(
            incident,
            user_error=error if error and not error.on_first_step else None,
            recurrences=settled.recurrences,
            evicted=settled.evicted,
        )
    draft.update(incident=incident)
    draft.emit(
        IncidentOpened,
        symptom=failure.symptom_name,
        table_one=row_of(failure.symptom_name),
        root=failure.root,
        failed_step=failure.step,
        node=failure.node,
        rank=failure.rank,
        reason=failure.text,
    )


def _weigh(draft: JobDraft, failure: Failure, own_name: str) -> RungChoice:
    """Count the failure in the incident, and return the rung that follows. `own_name`: its name without alerts."""
    incident = draft.incident
    if not is_one_of_many(draft, failure):
        incident = blame(incident, failure, draft.state.nodes.as_set)
    note_failure(draft, failure)
    refute(draft, failure)
    choice = choose_rung(draft, incident, failure)
    if (error := user_error(failure)) and is_of_present_code(draft.state, failure.generation):
        incident = msgspec.structs.replace(incident, user_error=error)
    if failure.is_early_end:
        incident = msgspec.structs.replace(incident, early_ended=incident.early_ended | {failure.generation})
    if failure.bad_step:
        others = tuple(known for known in incident.bad_steps if known.generation != failure.generation)
        incident = msgspec.structs.replace(incident, bad_steps=(*others, failure.bad_step))
    if failure.step > incident.failed_step:
        incident = msgspec.structs.replace(incident, failed_step=failure.step)
    if _describes_better(failure, own_name, incident):
        incident = msgspec.structs.replace(incident, symptom=failure.symptom, named=failure.named, summary=failure.text)
        if failure.cause is None:
            _diagnose(draft, failure)
    draft.update(incident=incident)
    return choice


def _diagnose(draft: JobDraft, failure: Failure) -> None:
    """Publish the diagnosis of the open incident, for a failure that no output of a rank shows."""
    draft.emit(
        IncidentDiagnosed,
        symptom=failure.symptom_name,
        table_one=row_of(failure.symptom_name),
        root=failure.root,
        node=failure.node,
        rank=failure.rank,
        generation=failure.generation,
        evidence=failure.evidence,
        reason=failure.text,
    )
