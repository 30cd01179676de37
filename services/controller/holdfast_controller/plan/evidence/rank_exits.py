"""Ends of the ranks of a failed generation, kept to be judged together.

The number is bounded: where thousands of ranks end at once, nearly all report only that they lost a partner. An end for
a rank's own reason takes the place of one of those.
"""

from __future__ import annotations

from holdfast.engines.crash import Diagnosis
from holdfast.engines.log_end import end_of_log
from holdfast.events import ProcessExited
from holdfast.events.parts.ranks import RankException
from holdfast.settings.decisions.ladder import LadderPolicy
from holdfast.symptoms import Root, Symptom
from holdfast_controller.plan.incident.incident import RankExit

EXITS_MAX = 16
TEXT_CHARS_MAX = 4000
"""Length of the end of a log, and of a traceback, that is kept."""

OF_MACHINE = frozenset(
    {
        Symptom.ECC_ERROR,
        Symptom.GPU_MEMORY_ERROR,
        Symptom.GPU_LOST,
        Symptom.GPU_UNAVAILABLE,
        Symptom.NVLINK_ERROR,
        Symptom.DRIVER_VERSION_MISMATCH,
        Symptom.DISK_FAULT,
        Symptom.OS_KERNEL_PANIC,
    }
)
"""Symptoms that, if they are true, are the machine's fault."""

_AFTERMATH = frozenset({Symptom.UNKNOWN, Symptom.NCCL_TIMEOUT, Symptom.NCCL_ERROR, Symptom.TERMINATED, Symptom.HANG})
"""Symptoms of ranks that mostly end because of another one."""


def rank_exit(event: ProcessExited, own: Diagnosis, policy: LadderPolicy) -> RankExit:
    """Return what is kept of a rank's end; `own` is the diagnosis of this end alone."""
    assert event.generation is not None and event.node is not None
    exception = event.exception
    if exception is not None:
        exception = RankException(
            type=exception.type,
            message=exception.message[:TEXT_CHARS_MAX],
            traceback=end_of_log(exception.traceback, TEXT_CHARS_MAX),
            storage=exception.storage,
        )
    is_elsewhere = exception is not None and bool(exception.storage)
    is_infrastructure = own.root is Root.INFRASTRUCTURE and own.symptom in OF_MACHINE
    return RankExit(
        generation=event.generation,
        node=event.node,
        rank=event.rank,
        at=event.exited_at,
        code=-event.signal if event.signal else event.exit_code,
        exception=exception,
        log_tail=end_of_log(event.log_tail, TEXT_CHARS_MAX),
        rule=own.rule,
        is_telling=own.symptom not in _AFTERMATH or (event.exit_code is None and event.signal is None),
        accuses=is_infrastructure and not is_elsewhere and own.confidence >= policy.accusation_confidence_min,
        has_stepped=event.steps_done > 0,
        event=event.id,
    )


def with_exit(exits: tuple[RankExit, ...], new: RankExit) -> tuple[RankExit, ...]:
    """Return the ends with this one; only those of the newest generation that failed are kept."""
    newest = max((one.generation for one in exits), default=0)
    if new.generation < newest:
        return exits
    kept = tuple(one for one in exits if one.generation == new.generation)
    if any(one.rank == new.rank for one in kept):
        return exits
    if len(kept) < EXITS_MAX:
        return (*kept, new)
    spare = next((one for one in kept if not one.is_telling), None)
    if spare is None or not new.is_telling:
        return kept
    return (*(one for one in kept if one is not spare), new)


def of_generation(exits: tuple[RankExit, ...], generation: int) -> tuple[RankExit, ...]:
    return tuple(one for one in exits if one.generation == generation)
