"""The symptom of one rank's end: its own failure, or a consequence of another rank's end.

The rules are those of `holdfast.engines.crash`; this module maps them to the symptoms of the ladder.
"""

from __future__ import annotations

import re
from signal import SIGABRT

from holdfast import exit_codes
from holdfast.engines.crash import Diagnosis, diagnose_end, hands_of_log, rule_of_exception
from holdfast.engines.crash.launcher_reports import signal_of_first
from holdfast.engines.log_end import end_of_log
from holdfast.events import ProcessExited
from holdfast.symptoms import Symptom

_NUMBER = re.compile(r"0x[0-9a-fA-F]+|\d+(\.\d+)?")

_OF_NODE = frozenset(
    {
        Symptom.CUDA_ERROR,
        Symptom.ILLEGAL_MEMORY_ACCESS,
        Symptom.ECC_ERROR,
        Symptom.GPU_LOST,
        Symptom.GPU_UNAVAILABLE,
        Symptom.NVLINK_ERROR,
        Symptom.DRIVER_VERSION_MISMATCH,
        Symptom.INFINIBAND_ERROR,
        Symptom.CPU_OOM,
        Symptom.BUS_ERROR,
        Symptom.PROCESS_LIMIT,
        Symptom.INSUFFICIENT_DISK_SPACE,
        Symptom.READ_ONLY_FILESYSTEM,
        Symptom.STALE_FILE_HANDLE,
        Symptom.MOUNT_LOST,
        Symptom.DISK_FAULT,
        Symptom.CONTAINER_ERROR,
    }
)
"""Crashes that point to the machine, though not always for certain."""

_OF_SERVICE = frozenset({Symptom.HDFS_ERROR, Symptom.STORAGE_SERVICE_ERROR, Symptom.EXTERNAL_SERVICE_ERROR})
"""Crashes caused by a service elsewhere, not by node or script. Refused credentials are none: waiting does not help."""

OF_STORAGE = frozenset(
    {
        Symptom.DISK_FAULT,
        Symptom.STALE_FILE_HANDLE,
        Symptom.MOUNT_LOST,
        Symptom.READ_ONLY_FILESYSTEM,
        Symptom.INSUFFICIENT_DISK_SPACE,
    }
)
"""Crashes that are of no machine of the job if the file system is another machine's (`RankException.storage`)."""

_OF_PEER = frozenset(
    {
        Symptom.NCCL_ERROR,
        Symptom.NCCL_TIMEOUT,
        Symptom.NETWORK_ERROR,
        Symptom.RENDEZVOUS_TIMEOUT,
        Symptom.HANG,
        Symptom.UNKNOWN,
    }
)
"""Crashes of ranks that wait for another rank, or cannot reach it."""

_OF_PROCESSES = frozenset({"ChildFailedError", "CalledProcessError"})
"""Exceptions that only report how a child process of the script ended, such as a launcher that it started."""

_TAIL_CHARS = 4000
"""Length of the end of a log that is searched for the reason of an abort."""


def diagnose(exited: ProcessExited) -> Diagnosis:
    """Diagnose this rank's end by its own evidence; other ranks may have failed earlier."""
    exception = exited.exception
    return diagnose_end(
        exception_type=exception.type if exception else "",
        message=exception.message if exception else "",
        trace=exception.traceback if exception else "",
        exit_code=exited.exit_code,
        signal=exited.signal,
        log_tail=end_of_log(exited.log_tail, _TAIL_CHARS),
        rank=exited.rank,
    )


def classify(exited: ProcessExited, *, alone: bool = False) -> Symptom:
    """Return the symptom of this end; `alone`: no other rank could be lost. Unknown errors count as the script's."""
    number = killed_by(exited)
    if number is not None:
        # A library that loses a partner in its own thread aborts the process; so does one that finds a device broken.
        if number != SIGABRT or alone:
            return Symptom.KILLED_BY_SIGNAL
        hands = hands_of_log(end_of_log(exited.log_tail, _TAIL_CHARS))
        return Symptom.PEER_LOST if "cascade" in hands and "first" not in hands else Symptom.KILLED_BY_SIGNAL
    if exited.exception is not None:
        name = exited.exception.type.rsplit(".", 1)[-1]
        rule = rule_of_exception(exited.exception.type, exited.exception.message)
        if rule is None or name == "MemoryError":
            # A batch that is too large fails in the same way on every node: no node is blamed.
            return Symptom.USER_EXCEPTION
        if rule.hand in ("cascade", "vague") and rule.symptom in _OF_PEER:
            return Symptom.USER_EXCEPTION if alone else Symptom.PEER_LOST
        if rule.symptom in _OF_SERVICE:
            return Symptom.SERVICE_ELSEWHERE
        if rule.symptom is Symptom.KILLED:
            # A process that the script has started was killed, and the script only reports that.
            return Symptom.KILLED_BY_SIGNAL
        if rule.symptom in OF_STORAGE and exited.exception.storage:
            return Symptom.SERVICE_ELSEWHERE
        return Symptom.INFRASTRUCTURE_ERROR if rule.symptom in _OF_NODE else Symptom.USER_EXCEPTION
    if exited.exit_code is None:
        return Symptom.RANKS_VANISHED
    return Symptom.SERVICE_ELSEWHERE if diagnose(exited).symptom in _OF_SERVICE else Symptom.EXIT_CODE


def killed_by(exited: ProcessExited) -> int | None:
    """Return the signal that ended the rank, or a process of the script's launcher whose report ended the rank; None if
    no signal did."""
    if exited.exception is not None:
        if exited.exception.type.rsplit(".", 1)[-1] not in _OF_PROCESSES:
            return None
        if (number := signal_of_first(exited.exception.message)) is not None:
            return number
    elif exited.signal is not None or not exited.exit_code:
        return exited.signal
    # The report's last part is about the first failure, and a long message is cut.
    return signal_of_first(end_of_log(exited.log_tail, _TAIL_CHARS))


_NO_MORE = frozenset({Symptom.UNKNOWN, Symptom.KILLED, Symptom.USER_CODE_ERROR})
"""Names that add nothing to the symptom."""


def finer_name(symptom: Symptom, diagnosis: Diagnosis) -> str:
    """Return the finer name of a rank's own failure; "" if there is none."""
    return "" if symptom is Symptom.PEER_LOST or diagnosis.symptom in _NO_MORE else str(diagnosis.symptom)


FIRST_HAND_OF_NODE = frozenset(
    {Symptom.KILLED_BY_SIGNAL, Symptom.INFRASTRUCTURE_ERROR, Symptom.RANKS_VANISHED, Symptom.HANG}
)
"""Symptoms that count against their node; the second time within an incident it is evicted."""

OF_USER_CODE = frozenset({Symptom.USER_EXCEPTION, Symptom.EXIT_CODE})


def signature(exited: ProcessExited) -> str:
    """Return the part of the error that is equal when it recurs: without addresses and amounts."""
    if (number := killed_by(exited)) is not None:
        return f"signal {number}"
    if exited.exception is None:
        return f"exit code {exited.exit_code}"
    return f"{exited.exception.type}: {_NUMBER.sub('#', exited.exception.message)}"


STEPS_ABSENT = "holdfast.trainer.checkpoint.errors.StepsAbsent"


def lacks_steps(exited: ProcessExited) -> bool:
    """Return True if the rank refused to start from scratch, because steps were kept that no rank can have now."""
    return exited.exception is not None and exited.exception.type == STEPS_ABSENT


DIRECTORY_TAKEN = "holdfast.trainer.checkpoint.errors.DirectoryTaken"


def has_no_directory(exited: ProcessExited) -> bool:
    """Return True if the rank may not write checkpoints, because a job of another cluster writes there."""
    return exited.exception is not None and exited.exception.type == DIRECTORY_TAKEN


def is_superseded(exited: ProcessExited) -> bool:
    """Return True if the rank ended because a newer generation had taken over the checkpoints."""
    return exited.exception is None and exited.exit_code == exit_codes.SUPERSEDED


def describe_exit(exited: ProcessExited) -> str:
    """Return how a rank ended, as one line without its traceback."""
    where = f"rank {exited.rank} on {exited.node}"
    if exited.signal is None and (number := killed_by(exited)) is not None:
        return f"{where} ended because a process that it had launched was killed by signal {number}"
    if exited.exception is not None:
        raised = f"{where} raised {exited.exception.type}: {exited.exception.headline[:200]}".rstrip(": ")
        return f"{raised} ({exited.exception.storage[:200]})" if exited.exception.storage else raised
    if exited.signal is not None:
        return f"{where} was killed by signal {exited.signal}"
    if exited.exit_code is None:
        return f"{where} disappeared ({exited.detail or 'no exit status'})"
    return f"{where} exited with code {exited.exit_code}"
