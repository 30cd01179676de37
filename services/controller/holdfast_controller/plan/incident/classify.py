"""What one rank's end looks like: a symptom, and whether it is first hand or follows from another rank's end.

The rules are those of `holdfast.engines.crash`; here is what the ladder makes of them.
"""

from __future__ import annotations

import re
from signal import SIGABRT

from holdfast import exit_codes
from holdfast.engines.crash import Diagnosis, diagnose_end, hands_of_log, rule_of_exception
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
"""What speaks of the machine, though not always for certain."""

_OF_SERVICE = frozenset({Symptom.HDFS_ERROR, Symptom.STORAGE_SERVICE_ERROR, Symptom.EXTERNAL_SERVICE_ERROR})
"""What a service elsewhere does to the job: neither a node nor the script is at fault. Who is refused for its
credentials would wait in vain: that is not here.
"""

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
"""What ranks show that wait for another one, or cannot reach it."""

_TAIL_CHARS = 4000
"""Of a log: what a process said when it aborted."""


def diagnosed(exited: ProcessExited) -> Diagnosis:
    """What the end of this rank shows by itself; other ranks may know better who was first."""
    exception = exited.exception
    return diagnose_end(
        exception_type=exception.type if exception else "",
        message=exception.message if exception else "",
        trace=exception.traceback if exception else "",
        exit_code=exited.exit_code,
        signal=exited.signal,
        log_tail=exited.log_tail[-_TAIL_CHARS:],
        rank=exited.rank,
    )


def classify(exited: ProcessExited, *, alone: bool = False) -> Symptom:
    """The symptom that this end shows. What is not understood counts as the script's own, never against a node.

    `alone`: the job has no other rank that this one could have lost.
    """
    if exited.exception is not None:
        name = exited.exception.type.rsplit(".", 1)[-1]
        said = rule_of_exception(exited.exception.type, exited.exception.message)
        if said is None or name == "MemoryError":
            # A batch that is too large looks the same on every node: held against none of them.
            return Symptom.USER_EXCEPTION
        if said.hand in ("cascade", "vague") and said.symptom in _OF_PEER:
            return Symptom.USER_EXCEPTION if alone else Symptom.PEER_LOST
        if said.symptom in _OF_SERVICE:
            return Symptom.SERVICE_ELSEWHERE
        return Symptom.INFRASTRUCTURE_ERROR if said.symptom in _OF_NODE else Symptom.USER_EXCEPTION
    if exited.signal is not None:
        # Libraries that lose a partner in a thread of their own abort the process; who finds a device broken does too.
        if exited.signal != SIGABRT or alone:
            return Symptom.KILLED_BY_SIGNAL
        hands = hands_of_log(exited.log_tail[-_TAIL_CHARS:])
        return Symptom.PEER_LOST if "cascade" in hands and "first" not in hands else Symptom.KILLED_BY_SIGNAL
    if exited.exit_code is None:
        return Symptom.RANKS_VANISHED
    return Symptom.SERVICE_ELSEWHERE if diagnosed(exited).symptom in _OF_SERVICE else Symptom.EXIT_CODE


_NO_MORE = frozenset({Symptom.UNKNOWN, Symptom.KILLED, Symptom.USER_CODE_ERROR})
"""Names that say no more than the symptom does."""


def named(symptom: Symptom, diagnosis: Diagnosis) -> str:
    """The finer name of what a rank shows by itself; "" if there is none."""
    return "" if symptom is Symptom.PEER_LOST or diagnosis.symptom in _NO_MORE else str(diagnosis.symptom)


FIRST_HAND_OF_NODE = frozenset(
    {Symptom.KILLED_BY_SIGNAL, Symptom.INFRASTRUCTURE_ERROR, Symptom.RANKS_VANISHED, Symptom.HANG}
)
"""Symptoms that are held against the node they appear on; the second time within an incident it is evicted."""

OF_USER_CODE = frozenset({Symptom.USER_EXCEPTION, Symptom.EXIT_CODE})
"""Symptoms that the script shows by itself."""


def signature(exited: ProcessExited) -> str:
    """What stays the same when the same error of the script comes again: addresses and amounts do not."""
    if exited.exception is None and exited.signal is not None:
        return f"signal {exited.signal}"
    if exited.exception is None:
        return f"exit code {exited.exit_code}"
    return f"{exited.exception.type}: {_NUMBER.sub('#', exited.exception.message)}"


def is_superseded(exited: ProcessExited) -> bool:
    """Whether the rank ended because it found that a newer generation has taken the checkpoints over."""
    return exited.exception is None and exited.exit_code == exit_codes.SUPERSEDED


def in_words(exited: ProcessExited) -> str:
    """One line that says how the rank ended."""
    where = f"rank {exited.rank} on {exited.node}"
    if exited.exception is not None:
        message = exited.exception.message.strip().splitlines()
        return f"{where} raised {exited.exception.type}: {message[0][:200] if message else ''}".rstrip(": ")
    if exited.signal is not None:
        return f"{where} was killed by signal {exited.signal}"
    if exited.exit_code is None:
        return f"{where} is gone ({exited.detail or 'no exit status'})"
    return f"{where} ended with exit code {exited.exit_code}"
