"""Wrong judgements of the analyzer: production with one conclusion broken. They show where its engines are inside."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.effects import Effect
from holdfast.engines.hang.hang_verdict import HangVerdict
from holdfast.engines.hang.stacks.stack_groups import StackVerdict
from holdfast.engines.slow import validation
from holdfast.engines.slow.slow_findings import PaceChange, ValidationResults
from holdfast.engines.slow.tracker import JobPace
from holdfast.settings.findings.corruption import CorruptionPolicy
from holdfast.settings.findings.hang import HangPolicy
from holdfast.settings.load import Settings
from holdfast_analyzer.engines.bad_numbers import bad_numbers
from holdfast_analyzer.engines.bad_numbers.bad_numbers import BadNumbers
from holdfast_analyzer.engines.bad_numbers.readings import NumberFault, NumberReading
from holdfast_analyzer.engines.hang import hang_answers
from holdfast_analyzer.engines.hang.hang_engine import HangEngine
from holdfast_analyzer.engines.slow import slow_location, slow_vote
from holdfast_analyzer.engines.slow.fail_slow import SlowJob
from holdfast_analyzer.engines.telemetry.telemetry_engine import TelemetryEngine
from holdfast_proving.policies.mutation import Change, Function, always
from holdfast_proving.policies.policy import Insight, Patch, Policy


def _afterwards(change: Function) -> Change:
    """Change what a function returns; `change` has its arguments after the result."""

    def make(original: Function, insight: Insight) -> Function:
        return lambda *args, **named: change(original(*args, **named), *args)

    return make


def _first_victim(verdict: HangVerdict, *_: Any) -> HangVerdict:
    return msgspec.structs.replace(verdict, ranks=verdict.victims[:1]) if verdict.ranks and verdict.victims else verdict


def _all_others(verdict: StackVerdict, processes: Any, *_: Any) -> StackVerdict:
    ranks = {process.rank for process in processes if process.kind == "rank"}
    return msgspec.structs.replace(verdict, outliers=tuple(sorted(ranks - set(verdict.outliers))))


def _upside_down(original: Function, insight: Insight) -> Function:
    def judge(results: ValidationResults, *args: Any) -> Any:
        turned = {rank: tuple(1.0 / took for took in turns) for rank, turns in results.compute_s.items()}
        return original(msgspec.structs.replace(results, compute_s=turned), *args)

    return judge


def _without(direction: str) -> Change:
    def change(changes: tuple[PaceChange, ...], *_: Any) -> tuple[PaceChange, ...]:
        return tuple(it for it in changes if it.direction != direction)

    return _afterwards(change)


def _no_norm_that_is_not_finite(reading: NumberReading | None, *_: Any) -> NumberReading | None:
    return None if reading is not None and reading.quantity == "grad_norm" and reading.value is None else reading


def _no_jump(suspect: NumberFault | None, *_: Any) -> NumberFault | None:
    return None if suspect is not None and suspect.value is not None else suspect


def _every_rank(working: set[int], processes: Any, *_: Any, **__: Any) -> set[int]:
    return {process.rank for process in processes if process.rank is not None}


FINDS: tuple[Policy, ...] = (
    Policy(name="finds_no_hang", about="no stall is traced", patches=(Patch(HangEngine, "due", always(Effect())),)),
    Policy(
        name="blames_a_victim",
        about="names the first rank that waits in a hang",
        patches=(Patch(hang_answers, "judge_hang", _afterwards(_first_victim)),),
    ),
    Policy(
        name="ignores_devices",
        about="a device that does nothing while all others wait is no reason to test its machine",
        patches=(Patch(hang_answers, "idle_devices", always(())),),
    ),
    Policy(
        name="takes_work_for_a_hang",
        about="a rank that writes or computes is no excuse",
        patches=(Patch(hang_answers, "_working", always(set())),),
    ),
    Policy(
        name="excuses_every_hang",
        about="takes every rank for one that works",
        patches=(Patch(hang_answers, "_working", _afterwards(_every_rank)),),
    ),
    Policy(
        name="patient_with_stalls",
        about="waits for the time of hundreds of steps",
        settings=Settings(hang=HangPolicy(step_multiple=200.0)),
    ),
    Policy(
        name="ignores_onsets",
        about="no change of pace is an onset",
        patches=(Patch(JobPace, "observe", _without("onset")),),
    ),
    Policy(
        name="ignores_relief",
        about="a job that is fast again counts as slow",
        patches=(Patch(JobPace, "observe", _without("relief")),),
    ),
    Policy(
        name="ignores_declines",
        about="a run that is slow from its first step on is what it is",
        patches=(Patch(SlowJob, "declined", always(None)),),
    ),
    Policy(
        name="takes_the_fastest",
        about="tests name the machine that computes fastest",
        patches=(Patch(slow_location, "judge_validation", _upside_down),),
    ),
    Policy(
        name="clears_the_late",
        about="takes a machine that could not be tested in time for well, since its peers are",
        patches=(Patch(slow_location, "_untested", always("")),),
    ),
    Policy(
        name="blames_for_processors",
        about="takes a machine that waits for the processors of its host for a slow one",
        patches=(
            Patch(slow_location, "shared_machines", always({})),
            Patch(slow_vote, "shared_machines", always({})),
        ),
    ),
    Policy(
        name="excuses_neighbours",
        about="takes every slow machine that shares its processors for one that waits for them",
        patches=(Patch(validation, "_own_s", always(1.0)),),
    ),
    Policy(
        name="turns_outliers_round",
        about="rounds of stacks flag the ranks that are alike",
        patches=(Patch(slow_vote, "judge_stacks", _afterwards(_all_others)),),
    ),
    Policy(
        name="ignores_telemetry",
        about="no use of resources is strange",
        patches=(Patch(TelemetryEngine, "due", always(Effect())),),
    ),
    Policy(
        name="ignores_norms",
        about="a gradient norm that is not finite does not matter",
        patches=(Patch(bad_numbers, "reading_of", _afterwards(_no_norm_that_is_not_finite)),),
    ),
    Policy(
        name="finds_no_jump",
        about="only numbers that are not finite are bad",
        patches=(Patch(BadNumbers, "_suspect", _afterwards(_no_jump)),),
    ),
    Policy(
        name="alarmed_by_one_batch",
        about="one bad step is a fault",
        settings=Settings(corruption=CorruptionPolicy(loss_jump_steps=1, grad_norm_steps=1)),
    ),
    Policy(
        name="certifies_at_once",
        about="a step is clean once the next one is",
        settings=Settings(corruption=CorruptionPolicy(certified_after_steps=1)),
    ),
)
