"""Wrong policies about the records of nodes: they forget, or hold against a node what is no machine's.

Those of `OFFENDERS` are wrong about machines that come back: as suspects, witnesses, repeated offenders, or slow again.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.engines.checks.suites import suite_for
from holdfast.engines.record import chance
from holdfast.engines.record.history import MarkKind
from holdfast.settings.decisions.record import RecordPolicy
from holdfast.settings.load import Settings
from holdfast.settings.mechanisms import MechanismPolicy
from holdfast.symptoms import Symptom
from holdfast_controller.plan.checks import suspect_test
from holdfast_controller.plan.doubt import group_guesses
from holdfast_controller.plan.incident import hangs, ladder, recovery, rungs, slow
from holdfast_controller.plan.incident.incident import Failure, Incident, Rung
from holdfast_controller.plan.incident.rung_choice import LadderOptions, RungChoice
from holdfast_controller.plan.record import accusations, finding, noting
from holdfast_controller.plan.record.finding import RecordFinding
from holdfast_proving.policies.mutation import Function, always, value
from holdfast_proving.policies.policy import Insight, Patch, Policy

_NO_NODES = frozenset({Symptom.SERVICE_ELSEWHERE, Symptom.USER_EXCEPTION, Symptom.EXIT_CODE})


def _counts_all(original: Function, insight: Insight) -> Function:
    def kind_of(failure: Failure) -> MarkKind | None:
        found: MarkKind | None = original(failure)
        return MarkKind.CRASH if failure.symptom in _NO_NODES else found

    return kind_of


def _counts_the_script(original: Function, insight: Insight) -> Function:
    def kind_of(failure: Failure) -> MarkKind | None:
        found: MarkKind | None = original(failure)
        return MarkKind.HARDWARE if failure.symptom is Symptom.USER_EXCEPTION else found

    return kind_of


def _as(was: MarkKind, becomes: MarkKind) -> Function:
    """Note one kind of failure as another."""

    def make(original: Function, insight: Insight) -> Function:
        def kind_of(failure: Failure) -> MarkKind | None:
            found: MarkKind | None = original(failure)
            return becomes if found is was else found

        return kind_of

    return make


def _tests_all(original: Function, insight: Insight) -> Function:
    """Stop the job for tests of all its machines where one of them could be tested beside it."""

    def by_record(incident: Incident, failure: Failure, record: Any, options: LadderOptions) -> RungChoice | None:
        choice: RungChoice | None = original(incident, failure, record, options)
        if choice is None or not choice.asks_first:
            return choice
        suite = suite_for(failure.symptom_name)
        return RungChoice(rung=Rung.CHECKS, reason=choice.reason, suite=suite, mechanism=choice.mechanism)

    return by_record


def _asks_for_none(original: Function, insight: Insight) -> Function:
    """Evict a machine that its record convicts at once, whether or not another one is free."""

    def by_record(incident: Incident, failure: Failure, record: Any, options: LadderOptions) -> RungChoice | None:
        choice: RungChoice | None = original(incident, failure, record, options)
        return msgspec.structs.replace(choice, asks_first=False) if choice and choice.is_convicted else choice

    return by_record


def _missed_nothing(original: Function, insight: Insight) -> Function:
    def found(*args: Any) -> RecordFinding | None:
        it: RecordFinding | None = original(*args)
        return msgspec.structs.replace(it, was_missed=False) if it is not None else None

    return found


def _explains_nothing(original: Function, insight: Insight) -> Function:
    return lambda nodes, incident: incident


RECORDS: tuple[Policy, ...] = (
    Policy(
        name="forgets_records",
        about="nothing is known of a node from earlier incidents",
        settings=Settings(mechanisms=MechanismPolicy(record="observe")),
    ),
    Policy(
        name="never_decays",
        about="a failure counts as much after weeks as after an hour",
        settings=Settings(record=RecordPolicy(half_life_days=3650.0)),
    ),
    Policy(
        name="counts_explained",
        about="holds against a node what services elsewhere and the script did",
        patches=(Patch(noting, "_kind_of", _counts_all),),
    ),
    Policy(
        name="counts_the_script",
        about="holds an error of the script against the machine that it came up on",
        patches=(Patch(noting, "_kind_of", _counts_the_script),),
    ),
    Policy(
        name="counts_silence",
        about="holds silence against a node",
        patches=(Patch(noting, "_kind_of", _as(MarkKind.LOST, MarkKind.ALERT)),),
    ),
    Policy(
        name="counts_kills",
        about="takes a kill for a crash",
        patches=(Patch(noting, "_kind_of", _as(MarkKind.KILLED, MarkKind.CRASH)),),
    ),
    Policy(
        name="records_each_alone",
        about="does not see that the job fails on all of its nodes",
        patches=(
            Patch(finding, "elsewhere", always(chance.NOTHING_ELSEWHERE)),
            Patch(noting, "elsewhere", always(chance.NOTHING_ELSEWHERE)),
        ),
    ),
    Policy(
        name="stands_without",
        about="evicts a machine for its record though none is free, where the job would train for hours with it",
        patches=(Patch(ladder, "_by_record", _asks_for_none),),
    ),
    Policy(
        name="forgets_hangs",
        about="does not see that stacks named the same machine in an earlier hang, which is over",
        patches=(Patch(hangs, "has_hung", always(False)),),
    ),
    Policy(
        name="ends_for_broken_nodes",
        about="takes what two broken machines show, one after the other, for a failure of the job",
        patches=tuple(Patch(of, "explained_by", _explains_nothing) for of in (rungs, group_guesses)),
    ),
)

OFFENDERS: tuple[Policy, ...] = (
    Policy(
        name="stops_for_tests",
        about="stops a job for tests of all machines, though one of them could be tested beside it",
        patches=(Patch(ladder, "_by_record", _tests_all),),
    ),
    Policy(
        name="stops_for_the_accused",
        about="stops a job for tests of all machines though its rank named one, and another is free",
        patches=(Patch(recovery, "may_exchange", always(False)),),
    ),
    Policy(
        name="judges_before_tests",
        about="takes words that two machines print for the script's before the first one is tested",
        patches=(
            Patch(accusations, "_is_under_test", always(False)),
            Patch(recovery, "awaits_tests", always(False)),
        ),
    ),
    Policy(
        name="asks_one_witness",
        about="tests one machine with one other: if both fail, neither is at fault",
        patches=(Patch(suspect_test, "WITNESSES", value(1)),),
    ),
    Policy(
        name="repeats_tests_that_miss",
        about="has a machine come back each time that the tests which miss its fault pass it",
        patches=(Patch(recovery, "finding", _missed_nothing),),
    ),
    Policy(
        name="forgives_witnesses",
        about="keeps a free machine that failed a test as the witness of another one",
        patches=(Patch(suspect_test, "_evict_witness", always(None)),),
    ),
    Policy(
        name="blocks_no_longer",
        about="blocks a machine that was evicted before for as long as at first",
        patches=(Patch(rungs, "BLOCKS_MAX", value(1)),),
    ),
    Policy(
        name="forgets_slowness",
        about="does not remember which machine tests found slow before",
        patches=(Patch(slow, "_slow_before", always({})),),
    ),
)
