"""The recovery ladder: which rung a failure asks for, and why. ByteRobust §4 (Fig. 5). Pure.

node lost, or silent about its start          -> evict it
an inspection names a machine                 -> evict it, without stop-time checks
the script's own error, code not yet good     -> back to the last good version
the script's own error, seen twice            -> stop, with the traceback
a service elsewhere failed the job            -> wait, each time longer, and start again; in the end stop
bad numbers                                   -> stop-time checks; again -> roll back, replay; at one step twice, stop
crash on a node with an alert of its own      -> evict it: a crash with a culprit
tests name a machine that makes the job slow  -> evict it, once it has cost as much as a restart, and test it again
a link, or a few by stacks, make the job slow -> evict both ends, or those few, likewise; the healthy ones come back
hang, and a machine speaks against itself     -> evict it: a process there is stopped, stuck, or cannot be read
crash or hang without a culprit               -> restart in place; again -> stop-time checks
checks found nothing, and it is the same node -> evict it; another one -> restart in place, then roll back
checks found nothing, and a group hangs       -> evict the group, and test its nodes beside training
checks name a link, and neither of its ends   -> evict both, or one if the job has no more nodes; test them as well
a link of the same node fails again           -> evict that node; who went for the link before comes back
the same though no node was there each time   -> it follows the job: roll back, or restart in place, soon replay, stop
too many attempts within one incident         -> stop

Failing again within an incident climbs; an incident ends when the job has got past the place where it failed. Behind
stop-time checks and replays their suspects are evicted (`named_by_checks`, `named_by_replay`), or the next rung is
taken: its nodes are checked, or compared, now.
"""

from __future__ import annotations

import msgspec

from holdfast.engines.checks.suites import suite_for
from holdfast.events.parts.ranks import Suspect
from holdfast.settings.ladder import LadderPolicy
from holdfast.symptoms import Symptom
from holdfast_controller.plan.incident.classify import FIRST_HAND_OF_NODE, OF_USER_CODE
from holdfast_controller.plan.incident.incident import (
    Alert,
    Failure,
    Incident,
    RankError,
    Recurrence,
    Rung,
    Spoiled,
)

TRAITS_MAX = 16
"""Of an incident; those that were shown last."""

EVICTED_FOR_TRAIT_MAX = 2
"""Where all nodes of a job show the same each time, the third to go would be no better a guess."""

INSPECTIONS, CHECKS, REPLAYS, HANGS, FAILURES = "inspections", "stop_time_checks", "replay", "hangs", "failures"
FAIL_SLOW = "fail_slow"
"""What an eviction can rest on."""


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """A rung, and the reason in words. `nodes` are those to evict, on the word of `mechanism`.

    `one_of`: at least one of them is at fault, and nobody can tell which; they are tested beside training. `link`: the
    connection that they go for.
    """

    rung: Rung
    reason: str
    nodes: tuple[str, ...] = ()
    one_of: bool = False
    link: tuple[str, str] | None = None
    mechanism: str = FAILURES
    suite: str = ""
    evidence: tuple[str, ...] = ()


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What the ladder has to work with: the job's `members`, and what may be done.

    `alerts` are those of the node that failed which often pass by themselves: with a crash they do not.
    `can_roll_back`: the failure came of code that is not known to be good, and there is other code that is.
    """

    members: frozenset[str]
    alerts: tuple[Alert, ...] = ()
    can_check: bool = True
    can_roll_back: bool = False
    can_replay: bool = False


def user_error(failure: Failure) -> RankError | None:
    """The error, if it is the script's own."""
    return failure.error if failure.symptom in OF_USER_CODE else None


def trait(failure: Failure) -> str | None:
    """By what the same failure of a node is known on another one."""
    return failure.error.trait if failure.error and failure.symptom in FIRST_HAND_OF_NODE else None


def blame(incident: Incident, failure: Failure, members: frozenset[str]) -> Incident:
    """The incident with this failure counted, at most once for each node and generation. `members`: the job's nodes."""
    if failure.symptom not in FIRST_HAND_OF_NODE or failure.node is None:
        return incident
    if shows := trait(failure):
        # Of an earlier generation's nodes those that are left count, and the one that speaks: rather one too many.
        here = members | {failure.node}
        seen = incident.shown.get(shows, Recurrence(by={}, each_time=here))
        by = seen.by | {failure.generation: seen.by.get(failure.generation, frozenset()) | {failure.node}}
        shown = incident.shown | {shows: Recurrence(by=by, each_time=seen.each_time & here)}
        newest = sorted(shown.items(), key=lambda entry: max(entry[1].by))[-TRAITS_MAX:]
        incident = msgspec.structs.replace(incident, shown=dict(newest))
    if incident.blamed_generation.get(failure.node) == failure.generation:
        return incident
    return msgspec.structs.replace(
        incident,
        blamed={**incident.blamed, failure.node: incident.blamed.get(failure.node, 0) + 1},
        blamed_generation={**incident.blamed_generation, failure.node: failure.generation},
    )


def choose(incident: Incident, failure: Failure, options: Options, policy: LadderPolicy) -> Choice:
    """The rung for `failure`, which `incident` has already counted by `blame`."""
    symptom, node = failure.symptom, failure.node
    if symptom is Symptom.NODE_DEPARTED and node:
        return Choice(rung=Rung.REPLACE, reason=failure.text, nodes=(node,))
    if symptom in (Symptom.NODE_LOST, Symptom.START_TIMEOUT) and node:
        return Choice(rung=Rung.EVICT, reason=failure.text, nodes=(node,))
    if symptom is Symptom.NODE_UNFIT and node:
        return Choice(rung=Rung.EVICT, reason=failure.text, nodes=(node,), mechanism=INSPECTIONS)
    if symptom is Symptom.FAIL_SLOW and failure.group:
        # Also one alone is tested again: what makes a machine slow often passes.
        return Choice(rung=Rung.EVICT, reason=failure.text, nodes=failure.group, one_of=True, mechanism=FAIL_SLOW)
    if symptom is Symptom.HANG and failure.suspects:
        return Choice(rung=Rung.EVICT, reason=failure.text, nodes=failure.suspects, mechanism=HANGS)
    if error := user_error(failure):
        return _for_user_error(incident, failure, error, options)
    if failure.symptom is Symptom.SERVICE_ELSEWHERE:
        return _for_service(incident, failure, policy)
    if failure.spoiled:
        return _for_bad_numbers(incident, failure, failure.spoiled, options)
    return _for_crash(incident, failure, options, policy)


def within_limits(choice: Choice, incident: Incident, failure: Failure, policy: LadderPolicy) -> Choice:
    """The choice, or the end if it would be one restart too many."""
    restarts = choice.rung in (Rung.REATTEMPT, Rung.ROLLBACK, Rung.CHECKS, Rung.REPLAY, Rung.EVICT)
    if not restarts or incident.restarts < policy.attempts_max:
        return choice
    reason = f"{failure.text}; gave up after {incident.restarts} restarts within one incident"
    return Choice(rung=Rung.STOP, reason=reason)


def named_by_checks(failure: Failure, suspects: tuple[Suspect, ...], members: frozenset[str]) -> Choice | None:
    """The rung behind stop-time checks that named somebody. Suspects that have left the job count no more."""
    here = tuple(suspect for suspect in suspects if suspect.node in members)
    if not here:
        return None
    found = "; ".join(f"{suspect.node}: {suspect.reason}" for suspect in here)
    return Choice(
        rung=Rung.EVICT,
        reason=f"{failure.text}; stop-time checks: {found}",
        nodes=tuple(suspect.node for suspect in here),
        mechanism=CHECKS,
    )


def named_by_link(
    incident: Incident, failure: Failure, links: tuple[tuple[str, str], ...], nodes: tuple[str, ...]
) -> Choice | None:
    """The rung behind stop-time checks in which one connection failed alone; `nodes` are the job's, by node rank."""
    if len(links) != 1 or not set(links[0]) <= set(nodes):
        return None
    (link,) = links
    ends = " and ".join(link)
    reason = f"{failure.text}; stop-time checks: {ends} cannot reach each other"
    before = {end for known in incident.links for end in known.ends}
    if len(again := before & set(link)) == 1:
        (node,) = again
        others = ", ".join(
            sorted({end for known in incident.links if node in known.ends for end in known.ends} - again)
        )
        reason = f"{reason}, as {node} and {others} could not"
        return Choice(rung=Rung.EVICT, reason=reason, nodes=(node,), link=link, mechanism=CHECKS)
    if len(nodes) == len(link):
        # Without either of them the link is not used. If it is the wrong one that goes, the link to the next one fails.
        reason = f"{reason}: one of them has to go"
        return Choice(rung=Rung.EVICT, reason=reason, nodes=nodes[-1:], one_of=True, link=link, mechanism=CHECKS)
    return Choice(rung=Rung.EVICT, reason=reason, nodes=link, one_of=True, link=link, mechanism=CHECKS)


def named_by_replay(failure: Failure, suspects: tuple[str, ...], said: str, *, one_of: bool) -> Choice | None:
    """The rung behind a replay that named somebody, or `one_of` several, and `said` this."""
    if not suspects:
        return None
    reason = f"{failure.text}; dual-phase replay: {said}"
    return Choice(rung=Rung.EVICT, reason=reason, nodes=suspects, one_of=one_of, mechanism=REPLAYS)


def next_rung(incident: Incident, failure: Failure, taken: Rung, options: Options, policy: LadderPolicy) -> str:
    """The rung that the same failure in the next generation would lead to, if the one `taken` now brings nothing."""
    if taken is Rung.CHECKS:
        incident = msgspec.structs.replace(incident, checked=options.members)
    elif taken is Rung.REPLAY:
        incident = msgspec.structs.replace(incident, replayed=options.members)
    elif taken is Rung.WAIT:
        incident = msgspec.structs.replace(incident, paused=(*incident.paused, failure.generation))
    again = msgspec.structs.replace(failure, generation=failure.generation + 1)
    if failure.error:
        again = msgspec.structs.replace(
            again, error=msgspec.structs.replace(failure.error, generation=failure.error.generation + 1)
        )
    if failure.spoiled:
        again = msgspec.structs.replace(
            again, spoiled=msgspec.structs.replace(failure.spoiled, generation=failure.spoiled.generation + 1)
        )
    then = msgspec.structs.replace(incident, attempts=incident.attempts + 1)
    choice = choose(blame(then, again, options.members), again, options, policy)
    return within_limits(choice, then, again, policy).rung


def _for_user_error(incident: Incident, failure: Failure, error: RankError, options: Options) -> Choice:
    if options.can_roll_back:
        return Choice(rung=Rung.ROLLBACK, reason=failure.text)
    if incident.user_error and (why := _comes_again(incident.user_error, error)):
        return Choice(rung=Rung.STOP, reason=f"{failure.text}; {why}")
    return Choice(rung=Rung.REATTEMPT, reason=failure.text)


def pause_s(pauses: int, policy: LadderPolicy) -> float:
    """How long the next one is, behind so many."""
    # Beyond some power of two it is the longest in any case, and no float goes on for ever.
    return min(policy.service_pause_s * 2.0 ** min(pauses, 64), policy.service_pause_s_max)


def _for_service(incident: Incident, failure: Failure, policy: LadderPolicy) -> Choice:
    """No machine is blamed, and no code: neither another node nor another version would be served any better."""
    if failure.generation in incident.paused:
        return Choice(rung=Rung.WAIT, reason=failure.text)
    pauses = len(incident.paused)
    waited_s = sum(pause_s(earlier, policy) for earlier in range(pauses))
    if pauses < policy.service_attempts_max and waited_s + pause_s(pauses, policy) <= policy.service_wait_s_max:
        return Choice(rung=Rung.WAIT, reason=failure.text)
    reason = (
        f"{failure.text}; the service has failed the job {pauses + 1} times, over {waited_s:.0f} s of pauses: "
        "no machine and no code of the job is known to be at fault"
    )
    return Choice(rung=Rung.STOP, reason=reason)


def _for_bad_numbers(incident: Incident, failure: Failure, spoiled: Spoiled, options: Options) -> Choice:
    if spoiled.certified is None:
        reason = f"{failure.text}; no step is known to be clean, so there is none to go back to"
        return Choice(rung=Rung.STOP, reason=reason)
    if options.can_check and options.members - incident.checked:
        return Choice(rung=Rung.CHECKS, reason=failure.text, suite=suite_for(failure.shown_as))
    earlier = [known for known in incident.spoiled if known.generation != spoiled.generation]
    if earlier and options.can_roll_back:
        why = "bad numbers again, no machine is known to be at fault, and the code is new"
        return Choice(rung=Rung.ROLLBACK, reason=f"{failure.text}; {why}")
    if earlier and options.can_replay and options.members - incident.replayed:
        return Choice(rung=Rung.REPLAY, reason=failure.text)
    if any(known.step == spoiled.step for known in earlier):
        why = f"bad numbers at the same step {spoiled.step}, twice: data, code or settings, and no machine"
        return Choice(rung=Rung.STOP, reason=f"{failure.text}; {why}")
    return Choice(rung=Rung.REATTEMPT, reason=failure.text)


def _for_crash(incident: Incident, failure: Failure, options: Options, policy: LadderPolicy) -> Choice:
    node = failure.node
    if failure.symptom in FIRST_HAND_OF_NODE and node and options.alerts:
        alert = options.alerts[-1]
        return Choice(
            rung=Rung.EVICT,
            reason=f"{failure.text}, where {alert.text}",
            nodes=(node,),
            mechanism=INSPECTIONS,
            evidence=tuple(alert.event for alert in options.alerts),
        )
    seen = incident.shown.get(trait(failure) or "")
    if seen and _follows_the_job(incident, trait(failure), seen):
        return _for_what_follows_the_job(incident, failure, seen, options, policy)
    if (
        options.can_check
        and incident.restarts >= policy.reattempts_before_checks
        and options.members - incident.checked
    ):
        return Choice(rung=Rung.CHECKS, reason=failure.text, suite=suite_for(failure.shown_as))
    if failure.symptom in FIRST_HAND_OF_NODE and node:
        same = sum(node in nodes for nodes in seen.by.values()) if seen else 0
        times = max(incident.blamed.get(node, 0), same)
        if times >= policy.failures_of_node_max:
            reason = f"{failure.text}; {node} failed {times} times within one incident"
            return Choice(rung=Rung.EVICT, reason=reason, nodes=(node,))
    was_checked = incident.checked >= options.members or not options.can_check
    is_again = incident.restarts >= policy.reattempts_before_checks
    if failure.group and not options.can_roll_back and was_checked and is_again:
        why = f"one of {', '.join(failure.group)} holds the others up"
        reason = f"{failure.text}; {why}"
        return Choice(rung=Rung.EVICT, reason=reason, nodes=failure.group, one_of=True, mechanism=HANGS)
    if options.can_roll_back and incident.restarts > policy.reattempts_before_checks:
        why = "it fails again, no machine is known to be at fault, and the code is new"
        return Choice(rung=Rung.ROLLBACK, reason=f"{failure.text}; {why}")
    return Choice(rung=Rung.REATTEMPT, reason=failure.text)


def _for_what_follows_the_job(
    incident: Incident, failure: Failure, seen: Recurrence, options: Options, policy: LadderPolicy
) -> Choice:
    if options.can_roll_back:
        why = "no node was there each time, and the code is new"
        return Choice(rung=Rung.ROLLBACK, reason=f"{failure.text}; {why}")
    if len(seen.by) < policy.same_failures_max:
        return Choice(rung=Rung.REATTEMPT, reason=failure.text)
    if options.can_replay and options.members - incident.replayed:
        return Choice(rung=Rung.REPLAY, reason=failure.text)
    nodes = sorted(frozenset().union(*seen.by.values()))
    reason = (
        f"{failure.text}; the same at the same step in {len(seen.by)} generations, on "
        f"{', '.join(nodes[:3])}{', ...' if len(nodes) > 3 else ''}: it follows the job, and no machine is at fault"
    )
    return Choice(rung=Rung.STOP, reason=reason)


def _follows_the_job(incident: Incident, shows: str | None, seen: Recurrence) -> bool:
    """No one node was there each time; or enough had to go for it."""
    evicted = sum(evicted.trait == shows for evicted in incident.evicted.values())
    return not seen.each_time or evicted >= EVICTED_FOR_TRAIT_MAX


def _comes_again(earlier: RankError, now: RankError) -> str:
    if earlier.generation == now.generation:
        return ""
    if earlier.on_first_step and now.on_first_step:
        return "the script's own error on its first step, twice running"
    if earlier.signature == now.signature and earlier.step == now.step:
        return f"the same error of the script at the same step {now.step}, twice running"
    return ""
