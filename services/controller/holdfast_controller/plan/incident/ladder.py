"""The recovery ladder: which rung follows a failure, and why (ByteRobust §4, Fig. 5).

node lost                                     -> replace it, without blocking it: it may come back
silent about its start                        -> evict it
ranks gone, with the agent away               -> restart in place; it counts once the job runs, if on one node only
an inspection names a machine                 -> evict it, without stop-time checks, once another one is there
an inspection names what several nodes share  -> nothing: it is that thing's fault (`plan/doubt`)
the script's own error, code not yet good     -> back to the last good version
the script's own error, seen twice            -> stop, with the traceback
some ranks ended with 0 before others         -> restart in place; after three restarts stop
a service elsewhere failed the job            -> wait, each time longer, and start again; in the end stop
a file system of another machine did          -> likewise, with stop-time checks before the end
the same, each time on one node alone         -> checks after three pauses; before the end exchange and test that node
bad numbers                                   -> stop-time checks; again -> roll back, replay; at one step twice, stop
the same in a third incident, never explained -> replay; if it finds nothing, again after three more or later
the same on one node alone, at two steps      -> exchange the node, and test it
the same at a step that was clean before      -> likewise if a replay finds nothing; of several: exchange all, or stop
crash on a node that has an alert             -> evict it: a crash with a culprit
a rank names its machine, and a witness too   -> evict it: its kernel, its devices, or all nodes that ran without it
a rank alone names its machine, others are free -> it leaves, and is tested beside training; else all are tested
the same although another one left for it     -> stop-time checks: a script can print anything
tests name a machine that slows the job down  -> evict it, once a restart is the smaller loss, and test it again
a link, or a group by stacks, slows it down   -> evict both ends, or the group, likewise; healthy ones come back
crash or hang, and a hint about its node      -> stop-time checks at once; a hint alone does nothing
hang, and a machine itself shows a fault      -> evict it, and test it: a process there is stuck, or cannot be read
the same without free ones, or again in a day -> restart in place: most often it passes, and the first one was well
hang, and one group stands apart from the rest -> evict the group, once others are there; test it beside training
the same without those nodes                  -> it follows the job: they come back, no other group is evicted
crash or hang without a culprit               -> restart in place; again -> stop-time checks
hang, and an earlier one named the same node  -> stop-time checks, though each was over
once more after such checks, and others are free -> it leaves, and is tested beside training
the record of its node calls for it           -> stop-time checks; if they found nothing before, evict it
the same without free ones, and no sure sign   -> restart in place: the job trains on with it until it fails again
it is likely broken, and others are free      -> evict it, and test it beside training; it comes back if it passes
evicted for its record, and tests missed it   -> it stays on the blocklist: they would miss it again
evicted for what its ranks did, as another's do -> it comes back; few nodes of a job may be out for that at once
checks found nothing, and the code is new     -> restart in place, then roll back, whichever nodes failed
checks found nothing, and it is the same node -> evict it, if for kills, to test it; another -> restart in place
checks found nothing, and a group hangs       -> evict the group, and test its nodes beside training
checks name a link, and neither of its ends   -> evict both, or one if the job has no more nodes; test them as well
a link of the same node fails again           -> evict that node; the others that were evicted for a link come back
several nodes' ranks accuse their machines     -> likewise: something that they share is at fault
tests or alerts prove a fault of a node        -> evict it; what it showed is explained, and says nothing of the job
the same although no node was part each time  -> it follows the job: roll back, or restart in place, soon replay, stop
too many attempts within one incident         -> stop

A second failure within an incident takes a higher rung; an incident ends when the job has trained past the step at
which it failed. Failures of code that is not yet known to be good add up over incidents: it may fail at any step.
After stop-time checks and replays their suspects are evicted (`plan/checks/conclusions.py`), or the next rung is
taken: its nodes are checked, or compared, by then.
"""

from __future__ import annotations

import msgspec

from holdfast.engines.checks.suites import suite_for
from holdfast.settings.decisions.ladder import LadderPolicy
from holdfast.symptoms import Symptom
from holdfast_controller.plan.doubt.doubt_records import leaving
from holdfast_controller.plan.evidence.blame import blame, trait
from holdfast_controller.plan.incident.bad_numbers.bad_number_rungs import for_bad_numbers
from holdfast_controller.plan.incident.classify import FIRST_HAND_OF_NODE, OF_STORAGE, OF_USER_CODE
from holdfast_controller.plan.incident.incident import (
    Failure,
    Incident,
    Proof,
    RankError,
    Recurrence,
    Rung,
)
from holdfast_controller.plan.incident.rung_choice import (
    FAIL_SLOW,
    HANGS,
    INSPECTIONS,
    RECORD,
    LadderOptions,
    RungChoice,
    accused_leaves,
    are_some_left,
    checks_for,
    group_leaves,
    unfit_leave,
)
from holdfast_controller.plan.record.finding import RecordFinding

ALONE_PAUSES = 3
"""Pauses after which the machines are tested where one node of the job alone fails on a file system that others use."""

EARLY_ENDS_MAX = 3
"""Maximum number of restarts after some ranks ended with exit code 0 and others lost them: at its end a script may do
so now and then, and go through with the next try."""

EVICTED_FOR_TRAIT_MAX = 2
"""Maximum number of nodes evicted for one trait: if it appears on each node, evicting a third is no better guess."""


def user_error(failure: Failure) -> RankError | None:
    return failure.error if failure.symptom in OF_USER_CODE else None


def choose(incident: Incident, failure: Failure, options: LadderOptions, policy: LadderPolicy) -> RungChoice:
    """Return the rung for `failure`, which `blame` has already counted in `incident`."""
    symptom, node = failure.symptom, failure.node
    if symptom is Symptom.NODE_DEPARTED and node:
        return RungChoice(rung=Rung.REPLACE, reason=failure.text, nodes=(node,))
    if symptom is Symptom.NODE_LOST and node and failure.may_be_outage:
        return RungChoice(rung=Rung.REPLACE, reason=failure.text, nodes=(node,))
    if symptom in (Symptom.NODE_LOST, Symptom.START_TIMEOUT) and node:
        return RungChoice(rung=Rung.EVICT, reason=failure.text, nodes=(node,))
    if symptom is Symptom.NODE_UNFIT and failure.of_warm_up:
        return unfit_leave(failure)
    if symptom is Symptom.NODE_UNFIT and node:
        return RungChoice(rung=Rung.EVICT, reason=failure.text, nodes=(node,), mechanism=INSPECTIONS)
    if symptom is Symptom.FAIL_SLOW and failure.group:
        # A single node is tested again as well: slowness often passes.
        return RungChoice(rung=Rung.EVICT, reason=failure.text, nodes=failure.group, one_of=True, mechanism=FAIL_SLOW)
    if symptom is Symptom.HANG and failure.suspects and (stuck := _for_suspects(incident, failure, options)):
        return stuck
    if error := user_error(failure):
        return _for_user_error(incident, failure, error, options)
    if failure.symptom is Symptom.SERVICE_ELSEWHERE:
        return _for_service(incident, failure, options, policy)
    if failure.bad_step:
        return for_bad_numbers(incident, failure, failure.bad_step, options)
    return _for_crash(incident, failure, options, policy)


def within_limits(
    choice: RungChoice, incident: Incident, failure: Failure, options: LadderOptions, policy: LadderPolicy
) -> RungChoice:
    """Return the choice, or to stop if it would be one restart too many."""
    restarts = choice.rung in (Rung.REATTEMPT, Rung.ROLLBACK, Rung.CHECKS, Rung.REPLAY, Rung.EVICT)
    if restarts and options.restarts_max is not None and incident.restarts >= options.restarts_max:
        return RungChoice(rung=Rung.STOP, reason=f"{failure.text}; --max-restarts allows no further restart")
    if not restarts or incident.restarts < policy.attempts_max:
        return choice
    reason = f"{failure.text}; gave up after {incident.restarts} restarts within one incident"
    return RungChoice(rung=Rung.STOP, reason=reason)


def next_rung(incident: Incident, failure: Failure, taken: Rung, options: LadderOptions, policy: LadderPolicy) -> str:
    """Return the rung for the same failure in the next generation, in case the one `taken` now does not help."""
    if taken is Rung.CHECKS:
        incident = msgspec.structs.replace(incident, checked=options.members)
    elif taken is Rung.REPLAY:
        incident = msgspec.structs.replace(incident, replayed=options.members)
    elif taken is Rung.WAIT:
        incident = msgspec.structs.replace(incident, paused=(*incident.paused, failure.generation))
    elif taken is Rung.EVICT and failure.is_convincing:
        options = msgspec.structs.replace(options, may_guess=False)
    again = msgspec.structs.replace(failure, generation=failure.generation + 1)
    if failure.error:
        again = msgspec.structs.replace(
            again, error=msgspec.structs.replace(failure.error, generation=failure.error.generation + 1)
        )
    if failure.bad_step:
        again = msgspec.structs.replace(
            again, bad_step=msgspec.structs.replace(failure.bad_step, generation=failure.bad_step.generation + 1)
        )
    then = msgspec.structs.replace(incident, attempts=incident.attempts + 1)
    choice = choose(blame(then, again, options.members), again, options, policy)
    return within_limits(choice, then, again, options, policy).rung


def _for_user_error(incident: Incident, failure: Failure, error: RankError, options: LadderOptions) -> RungChoice:
    if options.can_roll_back:
        return RungChoice(rung=Rung.ROLLBACK, reason=failure.text)
    if failure.is_early_end:
        earlier = len(incident.early_ended - {failure.generation})
        if earlier < EARLY_ENDS_MAX:
            return RungChoice(rung=Rung.REATTEMPT, reason=failure.text)
        why = f"after {earlier} restarts the script still ends earlier on some ranks than on others"
        return RungChoice(rung=Rung.STOP, reason=f"{failure.text}; {why}")
    if incident.user_error and (why := _recurs(incident.user_error, error)):
        return RungChoice(rung=Rung.STOP, reason=f"{failure.text}; {why}")
    return RungChoice(rung=Rung.REATTEMPT, reason=failure.text)


def pause_s(pauses: int, policy: LadderPolicy) -> float:
    # The exponent is limited so that the float does not overflow.
    return min(policy.service_pause_s * 2.0 ** min(pauses, 64), policy.service_pause_s_max)


def _for_service(incident: Incident, failure: Failure, options: LadderOptions, policy: LadderPolicy) -> RungChoice:
    """Blame no machine and no code: the service would fail another node or version in the same way.

    One machine alone may be cut off from a file system, or is the only one that writes there.
    """
    if failure.generation in incident.paused:
        return RungChoice(rung=Rung.WAIT, reason=failure.text)
    pauses = len(incident.paused)
    is_of_storage = failure.named in OF_STORAGE
    is_alone = is_of_storage and incident.cut_off == {failure.node} and len(options.members) > 1
    may_check = is_of_storage and options.can_check and are_some_left(options, incident.checked)
    if is_alone and may_check and pauses >= ALONE_PAUSES:
        return checks_for(failure, options.hints)
    waited_s = sum(pause_s(earlier, policy) for earlier in range(pauses))
    if pauses < policy.service_attempts_max and waited_s + pause_s(pauses, policy) <= policy.service_wait_s_max:
        return RungChoice(rung=Rung.WAIT, reason=failure.text)
    if may_check:
        return checks_for(failure, options.hints)
    if is_alone and options.may_exchange and not failure.is_irreplaceable:
        return accused_leaves(failure, "as no other one of the job failed on it, and the job would end")
    reason = (
        f"{failure.text}; the service failed the job {pauses + 1} times over {waited_s:.0f} s of pauses; "
        "no machine and no code of the job is known to be at fault"
    )
    return RungChoice(rung=Rung.STOP, reason=reason)


def _for_crash(incident: Incident, failure: Failure, options: LadderOptions, policy: LadderPolicy) -> RungChoice:
    node = failure.node
    if failure.symptom in FIRST_HAND_OF_NODE and node and options.alerts:
        return RungChoice(
            rung=Rung.EVICT,
            reason=f"{failure.text}; alert on that node: {options.alerts[-1].text}",
            nodes=(node,),
            mechanism=INSPECTIONS,
            evidence=tuple(alert.event for alert in options.alerts),
        )
    if failure.cause and failure.proof is Proof.PROVEN and node:
        reason = f"{failure.text}; {failure.cause.witness}"
        is_accusation = not failure.is_witnessed
        return RungChoice(
            rung=Rung.EVICT, reason=reason, nodes=(node,), mechanism=INSPECTIONS, is_accusation=is_accusation
        )
    if options.doubted:
        known = options.doubted[0]
        return RungChoice(
            rung=Rung.EVICT,
            reason=f"{failure.text}; alert on {known.node}: {known.text}",
            nodes=leaving(known),
            mechanism=INSPECTIONS,
            evidence=known.evidence,
        )
    if failure.is_convincing and options.may_guess and not options.can_roll_back:
        return group_leaves(failure, asks_first=True)
    if failure.may_be_outage and not _fails_alone(incident, failure, policy):
        return RungChoice(rung=Rung.REATTEMPT, reason=failure.text)
    if failure.is_shared and options.awaits_tests and options.can_check and are_some_left(options, incident.checked):
        return checks_for(failure, options.hints)
    seen = incident.recurrences.get(trait(failure) or "")
    if seen and (failure.is_shared or _follows_the_job(incident, trait(failure), seen)):
        return _for_what_follows_the_job(incident, failure, seen, options, policy)
    by_record = _by_record(incident, failure, options.record, options) if options.record else None
    if by_record is not None and by_record.rung is Rung.EVICT:
        return by_record
    if failure.proof is Proof.CLAIMED and node in options.members and _may_exchange(incident, failure, options):
        return accused_leaves(failure, "as its own rank accuses it")
    if by_record is not None:
        return by_record
    if not incident.checked and _hangs_though_checked(failure, options):
        return accused_leaves(failure, "as it hangs again though checks found nothing")
    restarts = incident.restarts + (options.code_failures if options.can_roll_back else 0)
    is_again = restarts >= policy.reattempts_before_checks
    is_due = is_again or failure.is_known_hang or failure.proof is Proof.CLAIMED or bool(options.hints)
    if options.can_check and is_due and are_some_left(options, incident.checked):
        return checks_for(failure, options.hints)
    if failure.symptom in FIRST_HAND_OF_NODE and node:
        same = sum(node in nodes for nodes in seen.by.values()) if seen else 0
        times = max(incident.times_blamed(node), same)
        # New code that only one rank runs fails on the same node each time.
        if times >= policy.failures_of_node_max and not (options.can_roll_back and options.is_all_of_code):
            reason = f"{failure.text}; {node} failed {times} times within one incident"
            was_killed = failure.error is not None and failure.error.is_kill
            return RungChoice(rung=Rung.EVICT, reason=reason, nodes=(node,), one_of=was_killed, is_accusation=True)
    was_checked = not (options.can_check and are_some_left(options, incident.checked))
    if failure.group and options.may_guess and not options.can_roll_back and was_checked and is_again:
        return group_leaves(failure)
    if options.can_roll_back and restarts > policy.reattempts_before_checks:
        why = "the job failed again, no machine is known to be at fault, and the code is new"
        return RungChoice(rung=Rung.ROLLBACK, reason=f"{failure.text}; {why}")
    return RungChoice(rung=Rung.REATTEMPT, reason=failure.text)


def _may_exchange(incident: Incident, failure: Failure, options: LadderOptions) -> bool:
    """Return True if the node that its own rank accuses may leave, once another one is there, and be tested then.

    That is the first answer of an incident. Where something has failed before, more than that node may be wrong: then
    all are tested.
    """
    return options.may_exchange and incident.restarts == 0 and not (failure.is_irreplaceable or options.can_roll_back)


def _hangs_though_checked(failure: Failure, options: LadderOptions) -> bool:
    """Return True if a node holds up the job once more, after checks in an earlier incident."""
    can_leave = not (failure.is_irreplaceable or options.can_roll_back or options.has_accused_enough)
    was_checked = options.record is not None and options.record.was_checked
    return failure.is_known_hang and failure.node in options.members and was_checked and can_leave


def _for_suspects(incident: Incident, failure: Failure, options: LadderOptions) -> RungChoice | None:
    """Return the eviction of machines on which processes are stuck; None if they stay.

    That often passes: tests show whether it has. If nothing can replace them, or the job has cost a healthy machine so
    lately, it is a hang like any other.
    """
    is_known = bool(options.alerts) or (
        options.record is not None and (options.record.is_sure or options.record.was_missed)
    )
    # While tests of all are concluded, no other node can be asked for.
    if not is_known and (failure.is_irreplaceable or not options.may_exchange or incident.checked):
        return None
    return RungChoice(
        rung=Rung.EVICT,
        reason=failure.text,
        nodes=failure.suspects,
        one_of=not is_known,
        asks_first=not is_known,
        is_accusation=not is_known,
        mechanism=HANGS,
    )


def _by_record(
    incident: Incident, failure: Failure, record: RecordFinding, options: LadderOptions
) -> RungChoice | None:
    """Return the rung that the record of the failed node calls for, checks before an eviction; None if it calls for
    neither."""
    assert failure.node is not None
    reason = f"{failure.text}; {record.text}"
    was_checked = record.was_checked or failure.node in incident.checked or not options.can_check
    is_blamed = record.is_sure or not options.can_roll_back
    is_known = record.is_sure or record.was_missed or (record.is_accused_alone and record.was_checked)
    # The test of one node beside training costs less than stopping all for tests, if another one takes its place.
    is_bare = failure.proof is Proof.NOTHING
    can_ask = options.can_ask and is_bare and not (failure.is_irreplaceable or options.has_accused_enough)
    # It prints the same again, and no other node does: tests miss it.
    is_odd_one = failure.proof is Proof.CLAIMED and record.is_accused_alone and record.was_cleared
    # It leaves for a test before the odds call for its eviction, as the first answer of an incident: where something
    # has failed before, more than that node may be wrong.
    is_untested = record.is_only_killed or not was_checked
    is_suspect = record.calls_for_exchange and is_untested and not incident.restarts
    is_convicted = is_odd_one or (record.calls_for_eviction and was_checked)
    is_due = is_convicted or ((is_suspect or record.calls_for_eviction) and can_ask)
    # Its fault comes now and then: the job loses less by it than by waiting for a node.
    can_stay = not (incident.restarts or record.is_sure)
    if is_due and is_blamed and failure.node in options.members:
        if can_stay and failure.is_irreplaceable and not failure.lacks_witness:
            return RungChoice(rung=Rung.REATTEMPT, reason=reason, evidence=record.evidence)
        return RungChoice(
            rung=Rung.EVICT,
            reason=reason,
            nodes=(failure.node,),
            # What tests did not find before they will not find beside training either.
            one_of=not (is_known or is_odd_one),
            asks_first=not is_convicted or (can_stay and options.can_ask),
            is_convicted=is_convicted,
            is_accusation=not record.is_sure,
            mechanism=RECORD,
            evidence=record.evidence,
        )
    if record.calls_for_checks and options.can_check and are_some_left(options, incident.checked):
        suite = suite_for(failure.symptom_name)
        return RungChoice(rung=Rung.CHECKS, reason=reason, suite=suite, mechanism=RECORD, evidence=record.evidence)
    return None


def _fails_alone(incident: Incident, failure: Failure, policy: LadderPolicy) -> bool:
    """Return True if the node failed often enough before, with its agent away and other nodes unharmed."""
    assert failure.node is not None
    return incident.times_blamed(failure.node) >= policy.failures_of_node_max


def _for_what_follows_the_job(
    incident: Incident, failure: Failure, seen: Recurrence, options: LadderOptions, policy: LadderPolicy
) -> RungChoice:
    if options.can_roll_back:
        why = "no node was part of the job each time, and the code is new"
        return RungChoice(rung=Rung.ROLLBACK, reason=f"{failure.text}; {why}")
    if len(seen.by) < policy.same_failures_max:
        return RungChoice(rung=Rung.REATTEMPT, reason=failure.text)
    if options.can_replay and are_some_left(options, incident.replayed):
        return RungChoice(rung=Rung.REPLAY, reason=failure.text)
    nodes = sorted(frozenset().union(*seen.by.values()))
    reason = (
        f"{failure.text}; the same failure at the same step in {len(seen.by)} generations, on "
        f"{', '.join(nodes[:3])}{', ...' if len(nodes) > 3 else ''}: it follows the job, so no machine is at fault"
    )
    return RungChoice(rung=Rung.STOP, reason=reason)


def _follows_the_job(incident: Incident, shows: str | None, seen: Recurrence) -> bool:
    """Return True if no node was part of the job each time, or enough nodes were evicted for it already."""
    evicted = sum(evicted.trait == shows for evicted in incident.evicted.values())
    return not seen.each_time or evicted >= EVICTED_FOR_TRAIT_MAX


def _recurs(earlier: RankError, now: RankError) -> str:
    if earlier.generation == now.generation:
        return ""
    if earlier.on_first_step and now.on_first_step:
        return "the script failed with an error of its own on its first step twice in a row"
    if earlier.signature == now.signature and earlier.step == now.step:
        where = f"at step {now.step}" if now.step >= 0 else "before the first step"
        return f"the script failed with the same error {where} twice in a row"
    return ""
