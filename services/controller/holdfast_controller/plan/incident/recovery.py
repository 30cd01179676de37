"""What the controller does about a failure: opens or continues an incident, weighs the evidence, takes a rung. Pure."""

from __future__ import annotations

import msgspec

from holdfast.engines.checks.checks_program import are_checks
from holdfast.events import BreakerOpened, Eviction, EvictionRevoked, IncidentOpened, Reattempt, Withheld
from holdfast.ids import derived_id
from holdfast.settings.hang import HangPolicy
from holdfast.settings.ladder import LadderPolicy
from holdfast.settings.mechanisms import MechanismPolicy
from holdfast.symptoms.rows import row_of
from holdfast_controller.plan.checks import suspect_test
from holdfast_controller.plan.checks.replay_scope import can_replay, first_phase
from holdfast_controller.plan.code.updates import can_roll_back, is_of_present_code, roll_back
from holdfast_controller.plan.draft import Draft
from holdfast_controller.plan.incident import alerts, breaker
from holdfast_controller.plan.incident.classify import FIRST_HAND_OF_NODE, OF_USER_CODE
from holdfast_controller.plan.incident.incident import (
    Evicted,
    FailedLink,
    Failure,
    Incident,
    Rung,
    Symptom,
    Taken,
)
from holdfast_controller.plan.incident.ladder import (
    REPLAYS,
    Choice,
    Means,
    blame,
    choose,
    coming,
    pause_s,
    trait,
    user_error,
    within_limits,
)
from holdfast_controller.plan.job import Ending, JobPhase

NOT_THERE = frozenset({Symptom.NODE_LOST, Symptom.START_TIMEOUT})
"""Who is lost or does not answer is replaced in any case: a job cannot train without."""

ENDS = frozenset({Symptom.KILLED, Symptom.EXIT_CODE, Symptom.RANKS_VANISHED})
"""That a rank ended, and nothing of why."""

TAKEN_MAX = 32
"""Rungs of an incident that are remembered; its events are all in the history."""


MECHANISMS = {Rung.CHECKS: "stop_time_checks", Rung.REPLAY: "replay", Rung.ROLLBACK: "rollback"}
"""Whose rung it is, where that can be made to only observe."""

WITHOUT = {Rung.CHECKS: "can_check", Rung.REPLAY: "can_replay", Rung.ROLLBACK: "can_roll_back"}
"""What the ladder does without then."""


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """The limits and the mechanisms that decide what is done about a failure."""

    ladder: LadderPolicy
    mechanisms: MechanismPolicy
    hang: HangPolicy = HangPolicy()


def failed(draft: Draft, failure: Failure, rules: Rules) -> None:
    """A failure of the generation that should run now: open an incident or go on with the open one, and act."""
    if are_checks(draft.state.spec):
        _failed_in_checks(draft, failure)
        return
    if draft.state.incident is None:
        _open(draft, failure)
    choice = _weigh(draft, failure, rules)
    assert draft.state.incident is not None
    act(draft, failure, within_limits(choice, draft.state.incident, failure, rules.ladder), rules)


def _failed_in_checks(draft: Draft, failure: Failure) -> None:
    """A node that dies of checks is one of their results, for whoever asked for them to judge: the others go on."""
    state = draft.state
    lost = state.member(failure.node) if failure.symptom in (Symptom.NODE_LOST, Symptom.NODE_DEPARTED) else None
    if lost is not None:
        draft.release((lost,), failure.text)
        draft.state = suspect_test.without(state, lost)
    elif failure.rank is not None and failure.node is not None and state.retest is not None:
        # Of other runs whoever asked for them decides when they are over.
        draft.state = state.update(finished=state.finished | {failure.node})
    if failure.symptom is Symptom.START_TIMEOUT or not draft.state.nodes:
        draft.end(Ending(phase=JobPhase.FAILED, reason=failure.text, exit_code=1))
        return
    if state.awaiting is not None and state.awaiting.what == "ranks_started":
        # Those that are left may all have started.
        draft.await_first_step_if_started()
    suspect_test.complete_if_over(draft)


def learned_late(draft: Draft, failure: Failure, rules: Rules) -> None:
    """Evidence of a generation already given up: it may tell who was at fault, and that going on is no use."""
    choice = _weigh(draft, failure, rules)
    if choice.rung is Rung.EVICT and failure.node in draft.state.nodes:
        # What has been started since is not cut off for an eviction that is withheld.
        if may_evict(draft, choice, rules.ladder):
            act(draft, failure, choice, rules)
        return
    if choice.rung in (Rung.STOP, Rung.ROLLBACK):
        act(draft, failure, choice, rules)
        return
    if choice.rung is Rung.WAIT and draft.state.phase is JobPhase.STARTING and _is_of_last(draft, failure):
        # A partner's complaint came first, and what was started for it would meet the same service. That start and the
        # one behind the pause are one: a long outage is no row of failures.
        assert draft.state.incident is not None
        incident = msgspec.structs.replace(draft.state.incident, attempts=draft.state.incident.attempts - 1)
        draft.state = draft.state.update(incident=incident)
        act(draft, failure, choice, rules)
        return
    checks = draft.state.checks
    if checks is None or not _tells_more(failure, checks.failure):
        return
    if choice.rung is Rung.CHECKS:
        # They go on, and what is decided behind them goes by this.
        draft.state = draft.state.update(checks=msgspec.structs.replace(checks, failure=failure))
    else:
        assert draft.state.incident is not None
        act(draft, failure, within_limits(choice, draft.state.incident, failure, rules.ladder), rules)


def pause_over(draft: Draft) -> None:
    """Time to try again what a service elsewhere has failed."""
    incident = draft.state.incident
    assert incident is not None
    reason = f"pause {len(incident.paused)} is over: {incident.summary}"
    draft.say(Reattempt, attempt=incident.attempts + 1, reason=reason)
    draft.order_start(f"restart in place: {reason}")
    draft.await_("ranks_started", draft.timeouts.start_s)


def means_of(draft: Draft, failure: Failure, rules: Rules) -> Means:
    """What the ladder has to work with for this failure."""
    state, mechanisms = draft.state, rules.mechanisms
    known = alerts.suspicions(state, failure.node, draft.now, rules.ladder)
    return Means(
        members=frozenset(state.nodes),
        alerts=tuple(alert for alert in known if alert.confidence == "tolerate")
        if mechanisms.inspections == "act"
        else (),
        can_roll_back=can_roll_back(state, failure.generation),
        can_replay=can_replay(state),
    )


def chosen(draft: Draft, incident: Incident, failure: Failure, rules: Rules) -> Choice:
    """The rung that `incident` asks for now. Those of mechanisms that only observe are said and passed over."""
    means = means_of(draft, failure, rules)
    choice = choose(incident, failure, means, rules.ladder)
    while (mechanism := MECHANISMS.get(choice.rung)) and getattr(rules.mechanisms, mechanism) == "observe":
        draft.say(Withheld, mechanism=mechanism, rung=choice.rung, node=failure.node, reason=choice.reason)
        means = msgspec.structs.replace(means, **{WITHOUT[choice.rung]: False})
        choice = choose(incident, failure, means, rules.ladder)
    return choice


def act(draft: Draft, failure: Failure, choice: Choice, rules: Rules) -> None:
    """Take the rung. An eviction that the circuit breaker withholds is said, and the ranks start again in place."""
    incident = draft.state.incident
    assert incident is not None
    if choice.rung is Rung.EVICT and failure.symptom not in NOT_THERE and not may_evict(draft, choice, rules.ladder):
        reason = f"{choice.reason}; the eviction was withheld"
        choice = msgspec.structs.replace(choice, rung=Rung.REATTEMPT, nodes=(), reason=reason)
        choice = within_limits(choice, incident, failure, rules.ladder)
    _note(draft, failure, choice, rules)
    match choice.rung:
        case Rung.STOP:
            _stop(draft, failure, choice.reason)
        case Rung.REATTEMPT:
            draft.say(Reattempt, attempt=incident.attempts + 1, node=failure.node, reason=choice.reason)
            draft.order_start(f"restart in place: {choice.reason}")
            draft.await_("ranks_started", draft.timeouts.start_s)
        case Rung.WAIT:
            draft.order_pause(failure.generation, pause_s(len(incident.paused), rules.ladder), choice.reason)
        case Rung.ROLLBACK:
            roll_back(draft, choice.reason)
            # A job that waits for nodes goes back when they have come.
            if not draft.state.vacancies:
                draft.order_start(f"roll the code back: {choice.reason}")
                draft.await_("ranks_started", draft.timeouts.start_s)
        case Rung.CHECKS:
            draft.order_checks(failure, choice.suite, choice.reason)
        case Rung.REPLAY:
            replay = first_phase(draft.state, failure, draft.now, rules.ladder, draft.timeouts)
            draft.order_replay(replay, choice.reason)
        case Rung.EVICT:
            _evict(draft, failure, choice)
        case Rung.REPLACE:
            held = tuple(filter(None, map(draft.state.member, choice.nodes)))
            draft.release(held, choice.reason)
            _go_on_without(draft, choice)


def may_evict(draft: Draft, choice: Choice, policy: LadderPolicy) -> bool:
    """Whether the circuit breaker lets these nodes go; if not, that is said, and it stays open."""
    state = draft.state
    if not breaker.opens(state.evictions, len(choice.nodes), state.spec.nnodes, draft.now, policy):
        if state.breaker_open_since is None:
            return True
    elif state.breaker_open_since is None:
        recent = len(breaker.counted(state.evictions, draft.now, policy))
        draft.say(
            BreakerOpened,
            evictions=recent,
            window_s=policy.evictions_window_s,
            reason=f"{recent} nodes were evicted within {policy.evictions_window_s:.0f} s, and "
            f"{', '.join(choice.nodes)} would be more than {breaker.evictions_max(state.spec.nnodes, policy)}: "
            "what blames so many machines is more likely wrong than right",
        )
        draft.state = state.update(breaker_open_since=draft.now)
    for node in choice.nodes:
        draft.say(Withheld, mechanism="breaker", rung=choice.rung, node=node, reason=choice.reason)
    return False


def _shows_more(failure: Failure, incident: Incident) -> bool:
    """Whether this tells better what the incident is than what it was opened for.

    That is what a rank shows by itself, where so far one had only lost a partner; and, of the generation that failed
    first, a cause that has a name, where so far a rank had only ended.
    """
    if incident.symptom is Symptom.PEER_LOST:
        return failure.symptom is not Symptom.PEER_LOST
    is_of_first = bool(incident.taken) and failure.generation == incident.taken[0].generation
    is_bare = incident.symptom in ENDS and not incident.named
    return is_of_first and is_bare and failure.symptom in (Symptom.INFRASTRUCTURE, Symptom.SERVICE)


def _is_of_last(draft: Draft, failure: Failure) -> bool:
    """Whether it ended the generation before the present one."""
    return failure.generation == draft.state.generation - 1


def _tells_more(failure: Failure, known: Failure) -> bool:
    """Whether this, of the same generation, is the failure itself where what is known only followed from it."""
    first_hand = FIRST_HAND_OF_NODE | OF_USER_CODE | {Symptom.SERVICE}
    follows = known.symptom is Symptom.PEER_LOST
    return follows and failure.generation == known.generation and failure.symptom in first_hand


def _open(draft: Draft, failure: Failure) -> None:
    incident = Incident(
        id=derived_id(draft.cause, "incident"),
        opened_at=draft.now,
        symptom=failure.symptom,
        named=failure.named,
        failed_step=failure.step,
        summary=failure.text,
    )
    if (settled := draft.state.settled) is not None:
        # What comes again in the same place is the same failure, though its incident was over.
        error = settled.user_error
        incident = msgspec.structs.replace(
            incident,
            user_error=error if error and not error.on_first_step else None,
            shown=settled.shown,
            evicted=settled.evicted,
        )
    draft.state = draft.state.update(incident=incident)
    draft.say(
        IncidentOpened,
        symptom=failure.shown_as,
        table_one=row_of(failure.shown_as),
        root=failure.root,
        failed_step=failure.step,
        node=failure.node,
        rank=failure.rank,
        reason=failure.text,
    )


def _weigh(draft: Draft, failure: Failure, rules: Rules) -> Choice:
    assert draft.state.incident is not None
    incident = blame(draft.state.incident, failure, frozenset(draft.state.nodes))
    choice = chosen(draft, incident, failure, rules)
    if (error := user_error(failure)) and is_of_present_code(draft.state, failure.generation):
        incident = msgspec.structs.replace(incident, user_error=error)
    if failure.spoiled:
        others = tuple(known for known in incident.spoiled if known.generation != failure.generation)
        incident = msgspec.structs.replace(incident, spoiled=(*others, failure.spoiled))
    if failure.step > incident.failed_step:
        incident = msgspec.structs.replace(incident, failed_step=failure.step)
    if _shows_more(failure, incident):
        incident = msgspec.structs.replace(incident, symptom=failure.symptom, named=failure.named, summary=failure.text)
    draft.state = draft.state.update(incident=incident)
    return choice


def _note(draft: Draft, failure: Failure, choice: Choice, rules: Rules) -> None:
    """Write down which rung it is, on what evidence, and which would come next."""
    incident = draft.state.incident
    assert incident is not None
    observed = (rung for rung, name in MECHANISMS.items() if getattr(rules.mechanisms, name) == "observe")
    means = msgspec.structs.replace(
        means_of(draft, failure, rules), **dict.fromkeys((WITHOUT[rung] for rung in observed), False)
    )
    taken = Taken(
        at=draft.now,
        generation=failure.generation,
        rung=choice.rung,
        reason=choice.reason,
        nodes=choice.nodes,
        evidence=tuple(dict.fromkeys((*failure.evidence, *choice.evidence))),
        next="" if choice.rung is Rung.STOP else coming(incident, failure, choice.rung, means, rules.ladder),
    )
    incident = msgspec.structs.replace(incident, taken=(*incident.taken, taken)[-TAKEN_MAX:])
    draft.state = draft.state.update(incident=incident)


def _stop(draft: Draft, failure: Failure, reason: str) -> None:
    incident = draft.state.incident
    assert incident is not None
    _revoke(draft, failure, reason)
    error = failure.error
    ending = Ending(
        phase=JobPhase.FAILED,
        reason=reason,
        exit_code=error.exit_code if error else 1,
        traceback=error.traceback if error else "",
    )
    draft.end(ending)


def _revoke(draft: Draft, failure: Failure, reason: str) -> None:
    """The nodes that had to go for the same failure were not at fault."""
    assert draft.state.incident is not None
    for node, evicted in sorted(draft.state.incident.evicted.items()):
        if evicted.trait == trait(failure):
            draft.say(EvictionRevoked, node=node, epoch=evicted.epoch, reason=reason)


def _exonerate(draft: Draft, incident: Incident, choice: Choice) -> None:
    """Those that went for a link of the same node, whose other links now turn out to fail as well."""
    for known in incident.links:
        if not choice.one_of and set(choice.nodes) & set(known.ends):
            for node, epoch in sorted(known.evicted.items()):
                if node not in choice.nodes:
                    draft.say(EvictionRevoked, node=node, epoch=epoch, reason=choice.reason)


def _evict(draft: Draft, failure: Failure, choice: Choice) -> None:
    incident = draft.state.incident
    assert incident is not None
    evicted = dict(incident.evicted)
    for member in filter(None, map(draft.state.member, choice.nodes)):
        draft.say(
            Eviction,
            node=member.node,
            epoch=member.epoch,
            blocked_for_s=draft.timeouts.block_s,
            together=choice.nodes if choice.one_of else (),
            reason=choice.reason,
        )
        if shows := trait(failure):
            evicted[member.node] = Evicted(epoch=member.epoch, trait=shows)
    if choice.mechanism == REPLAYS:
        _revoke(draft, failure, choice.reason)
    links = incident.links
    if choice.link is not None:
        _exonerate(draft, incident, choice)
        held = {member.node: member.epoch for member in filter(None, map(draft.state.member, choice.nodes))}
        links = (*links, FailedLink(ends=choice.link, evicted=held))
    counts = () if failure.symptom in NOT_THERE else (draft.now,) * len(choice.nodes)
    draft.state = draft.state.update(
        incident=msgspec.structs.replace(incident, evicted=evicted, links=links),
        evictions=(*draft.state.evictions, *counts),
    )
    _go_on_without(draft, choice)


def _go_on_without(draft: Draft, choice: Choice) -> None:
    for node in choice.nodes:
        draft.vacate(node)
    draft.claim(f"{', '.join(choice.nodes)} left the job: {choice.reason}")
