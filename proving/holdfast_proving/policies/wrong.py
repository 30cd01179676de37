"""Wrong policies (mutants): each is production with one judgement broken. The judges have to notice every one.

A new rung of the ladder brings its mutant here.
"""

from __future__ import annotations

import msgspec

from holdfast.settings.load import Settings
from holdfast.settings.pool import PoolPolicy
from holdfast.settings.timeouts import Timeouts
from holdfast.symptoms import Symptom
from holdfast_controller.plan import members
from holdfast_controller.plan.checks import checks, suspect_test
from holdfast_controller.plan.doubt import doubts, replacement, shared_faults
from holdfast_controller.plan.draft import JobDraft
from holdfast_controller.plan.incident import (
    alerts,
    breaker,
    classify,
    hangs,
    ladder,
    rank_exit,
    recovery,
    rungs,
    slow,
)
from holdfast_controller.plan.incident.bad_numbers import bad_number_rungs, bad_numbers
from holdfast_controller.plan.incident.classify import FIRST_HAND_OF_NODE
from holdfast_controller.plan.incident.incident import Failure, Rung
from holdfast_controller.plan.incident.rung_choice import LadderOptions, RungChoice
from holdfast_controller.plan.incident.rungs import ABSENT
from holdfast_controller.plan.job import JobState
from holdfast_proving.policies.mutation import (
    Function,
    always,
    blames,
    but_for,
    choosing,
    ladder_of,
    taking,
    value,
    with_option,
)
from holdfast_proving.policies.policy import Insight, Patch, Policy
from holdfast_proving.policies.wrong_belief import BELIEVES, HINTED, REMEMBERS
from holdfast_proving.policies.wrong_code import CODES
from holdfast_proving.policies.wrong_copies import COPIES
from holdfast_proving.policies.wrong_course import COURSES
from holdfast_proving.policies.wrong_findings import FINDS
from holdfast_proving.policies.wrong_groups import GROUPS
from holdfast_proving.policies.wrong_record import OFFENDERS, RECORDS
from holdfast_proving.policies.wrong_rungs import SWAPPED
from holdfast_proving.policies.wrong_silence import SILENCES
from holdfast_proving.policies.wrong_suspicions import SUSPICIONS
from holdfast_proving.policies.wrong_warm_up import WARM_UPS


def _gives_up(choice: RungChoice, failure: Failure, options: LadderOptions) -> RungChoice:
    return RungChoice(rung=Rung.STOP, reason=failure.text)


def _evicts_at_once(choice: RungChoice, failure: Failure, options: LadderOptions) -> RungChoice:
    if failure.symptom in FIRST_HAND_OF_NODE and failure.node in options.members:
        return RungChoice(rung=Rung.EVICT, reason=failure.text, nodes=(failure.node,))
    return choice


def _evicts_others(draft: JobDraft, failure: Failure, choice: RungChoice) -> RungChoice:
    others = tuple(node for node in draft.state.nodes if node not in choice.nodes)
    if choice.rung is not Rung.EVICT or failure.symptom in ABSENT or not others:
        return choice
    return msgspec.structs.replace(choice, nodes=others[: len(choice.nodes)], one_of=False)


def _evicts_nobody(draft: JobDraft, failure: Failure, choice: RungChoice) -> RungChoice:
    if choice.rung is not Rung.EVICT or failure.symptom in ABSENT:
        return choice
    return RungChoice(rung=Rung.REATTEMPT, reason=choice.reason)


def _guesses_one(draft: JobDraft, failure: Failure, choice: RungChoice) -> RungChoice:
    return msgspec.structs.replace(choice, nodes=choice.nodes[:1]) if choice.one_of else choice


def _never_waits(choice: RungChoice, failure: Failure, options: LadderOptions) -> RungChoice:
    return msgspec.structs.replace(choice, rung=Rung.REATTEMPT) if choice.rung is Rung.WAIT else choice


def _stops_at_bad_numbers(choice: RungChoice, failure: Failure, options: LadderOptions) -> RungChoice:
    return RungChoice(rung=Rung.STOP, reason=failure.text) if failure.bad_step else choice


def _stops_at_clean_steps(choice: RungChoice, failure: Failure, options: LadderOptions) -> RungChoice:
    exchanges = failure.bad_step is not None and choice.rung is Rung.EVICT and choice.one_of
    return RungChoice(rung=Rung.STOP, reason=failure.text) if exchanges else choice


def _for_names_only(original: Function, _: Insight) -> Function:
    return lambda *given: original(*given) if given[1].shared else float("inf")


def _at_once(original: Function, _: Insight) -> Function:
    def replace(draft: JobDraft, failure: Failure, mechanism: str) -> bool:
        recovery.handle_failure(draft, failure)
        return True

    return replace


WRONG: tuple[Policy, ...] = (
    Policy(name="gives_up", about="stops at the first failure", patches=(choosing(_gives_up),)),
    Policy(name="evicts_others", about="evicts another node than the suspect", patches=(taking(_evicts_others),)),
    Policy(name="evicts_at_once", about="evicts at the first crash", patches=(choosing(_evicts_at_once),)),
    Policy(name="evicts_nobody", about="restarts in place of evictions", patches=(taking(_evicts_nobody),)),
    Policy(name="ignores_alerts", about="no alert matters", patches=(Patch(alerts, "failure", always(None)),)),
    Policy(name="ignores_hangs", about="no hang matters", patches=(Patch(hangs, "handle_failure", always(None)),)),
    Policy(name="ignores_slowness", about="no slow node matters", patches=(Patch(slow, "is_due", always(False)),)),
    Policy(
        name="ignores_bad_numbers",
        about="no bad number matters",
        patches=(Patch(bad_numbers, "handle_failure", always(None)),),
    ),
    Policy(
        name="ignores_losses", about="no lost node matters", patches=(Patch(members, "handle_failure", always(None)),)
    ),
    Policy(name="no_breaker", about="evicts as many as are blamed", patches=(Patch(breaker, "opens", always(False)),)),
    Policy(name="open_breaker", about="evicts no node by evidence", patches=(Patch(breaker, "opens", always(True)),)),
    Policy(
        name="never_checks", about="tests no node", patches=(Patch(recovery, "_options", with_option(can_check=False)),)
    ),
    Policy(
        name="disbelieves_checks",
        about="ignores what checks find",
        patches=(Patch(checks, "named_by_checks", always(None)),),
    ),
    Policy(
        name="keeps_suspects",
        about="tests no node of an evicted group",
        patches=(Patch(suspect_test, "follow_up", always(None)),),
    ),
    Policy(
        name="blames_for_services",
        about="takes a service's failure for the script's own",
        patches=(Patch(classify, "_OF_SERVICE", value(frozenset())),),
    ),
    Policy(
        name="starts_from_scratch",
        about="restores no step",
        patches=(Patch(JobState, "next_limit", value(property(lambda state: 0))),),
    ),
    Policy(
        name="restores_spoiled_steps",
        about="restores the newest step, certified or not",
        patches=(Patch(JobState, "next_limit", value(property(lambda state: None))),),
    ),
    Policy(name="guesses_one", about="evicts one of a group, and stops there", patches=(taking(_guesses_one),)),
    Policy(
        name="ignores_lost_peers",
        about="a rank that lost its peer is no failure",
        patches=(Patch(rank_exit, "handle_failure", but_for(Symptom.PEER_LOST)),),
    ),
    Policy(
        name="blames_the_messenger",
        about="evicts the node that reports the loss of a peer",
        patches=(blames(Symptom.PEER_LOST),),
    ),
    Policy(
        name="blames_for_the_script",
        about="evicts for errors of the script",
        patches=(blames(Symptom.USER_EXCEPTION),),
    ),
    Policy(name="never_waits", about="restarts at once though a service is away", patches=(choosing(_never_waits),)),
    Policy(name="stops_at_bad_numbers", about="gives up at NaN", patches=(choosing(_stops_at_bad_numbers),)),
    Policy(
        name="stops_at_clean_steps",
        about="takes numbers that go bad at a step that was clean before for data",
        patches=(choosing(_stops_at_clean_steps),),
    ),
    Policy(
        name="forgets_bad_numbers",
        about="takes bad numbers that come back hours later for new ones",
        patches=(Patch(bad_number_rungs, "calls_for_replay", always(False)),),
    ),
    Policy(
        name="waits_out_slowness",
        about="tolerates days of it",
        patches=(Patch(slow, "price", always(slow.Price(restart_s=6 * 86400.0, redo_s=0.0))),),
    ),
    Policy(
        name="restarts_from_scratch",
        about="restarts jobs of free will that have shown no way to resume",
        patches=(Patch(slow, "can_resume", always(True)),),
    ),
    Policy(
        name="compares_nothing",
        about="takes what nodes share for the fault of each",
        patches=(Patch(shared_faults, "compare", always(None)),),
    ),
    Policy(
        name="compares_names_only",
        about="counts one check that fails on most machines as so many faults",
        patches=(Patch(shared_faults, "_seen_by_min", _for_names_only),),
    ),
    Policy(name="does_not_wait", about="evicts before others can report", settings=ladder_of(alerts_wait_s=0.0)),
    Policy(
        name="blocks_the_silent", about="blocks lost nodes", patches=(Patch(rungs, "_blocked_for_s", always(86400.0)),)
    ),
    Policy(
        name="evicts_without_replacement",
        about="evicts from a job that trains though no node is free",
        patches=(Patch(doubts, "replace_when_possible", _at_once),),
    ),
    Policy(
        name="replaces_what_has_passed",
        about="replaces a slow machine as soon as another one is free, though it is fast again",
        patches=(Patch(slow, "withdraw", always(None)), Patch(replacement, "_is_wanted", always(True))),
    ),
    Policy(name="hoards", about="leaves a dozen machines unused", settings=Settings(pool=PoolPolicy(size=12))),
    Policy(name="blocks_nobody", about="a node is back at once", settings=Settings(timeouts=Timeouts(block_s=1.0))),
    Policy(
        name="evicts_at_a_blink",
        about="one alert that may pass evicts from a job that trains",
        settings=ladder_of(alerts_max=1),
        patches=(Patch(alerts, "trains_well", always(False)),),
    ),
    Policy(
        name="never_stops",
        about="restarts a job that cannot go on",
        settings=ladder_of(attempts_max=100_000, same_failures_max=100_000),
        patches=(Patch(ladder, "_recurs", always("")),),
    ),
    *BELIEVES,
    *HINTED,
    *REMEMBERS,
    *COURSES,
    *SWAPPED,
    *FINDS,
    *COPIES,
    *GROUPS,
    *CODES,
    *RECORDS,
    *OFFENDERS,
    *SILENCES,
    *SUSPICIONS,
    *WARM_UPS,
)
