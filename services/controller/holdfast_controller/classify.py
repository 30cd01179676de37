"""What one rank's end looks like: a symptom, and whether it is first hand or follows from another rank's end."""

from __future__ import annotations

import re
from signal import SIGABRT

from holdfast import exit_codes
from holdfast.events import ProcessExited
from holdfast_controller.state import Symptom

_PEER_LOST = re.compile(
    r"connection closed by peer|connection reset by peer|connection refused|broken pipe|socket closed"
    r"|failed to connect|wait timeout|timed out waiting|remote process exited|nccl.*(abort|timeout|watchdog)"
    r"|DistNetworkError|DistStoreError|ncclRemoteError",
    re.IGNORECASE,
)
"""Messages of ranks that lost a partner: gloo, TCPStore and NCCL all speak so of somebody else's end."""

_INFRASTRUCTURE = re.compile(
    r"no space left on device|input/output error|stale file handle|transport endpoint is not connected"
    r"|read-only file system|cannot allocate memory|CUDA error|CUDA driver|cudaError|ECC error|NVML|ibv_|infiniband",
    re.IGNORECASE,
)
"""Messages that speak of the machine, not of the script."""

_OF_SCRIPT = re.compile(r"device-side assert|out of memory", re.IGNORECASE)
"""Messages of CUDA that speak of the script: an index out of bounds, a batch that is too large."""

_NUMBER = re.compile(r"0x[0-9a-fA-F]+|\d+(\.\d+)?")

_PEER_LOST_TYPES = frozenset({"DistNetworkError", "DistStoreError", "ConnectionResetError", "BrokenPipeError"})
_INFRASTRUCTURE_TYPES = frozenset({"AcceleratorError"})
_OUT_OF_MEMORY_TYPES = frozenset({"MemoryError", "OutOfMemoryError"})
"""A batch that is too large looks the same on every node: held against none of them."""

_TAIL_CHARS = 4000
"""Of a log: what a process said when it aborted."""


def classify(exited: ProcessExited, *, alone: bool = False) -> Symptom:
    """The symptom that this end shows. What is not understood counts as the script's own, never against a node.

    `alone`: the job has no other rank that this one could have lost.
    """
    if exited.exception is not None:
        name = exited.exception.type.rsplit(".", 1)[-1]
        message = exited.exception.message
        if name in _OUT_OF_MEMORY_TYPES or _OF_SCRIPT.search(message):
            return Symptom.USER_EXCEPTION
        if name in _PEER_LOST_TYPES or (name in ("RuntimeError", "DistBackendError") and _PEER_LOST.search(message)):
            return Symptom.USER_EXCEPTION if alone else Symptom.PEER_LOST
        if name in _INFRASTRUCTURE_TYPES or _INFRASTRUCTURE.search(message):
            return Symptom.INFRASTRUCTURE
        return Symptom.USER_EXCEPTION
    if exited.signal is not None:
        # Libraries that lose a partner in a thread of their own abort the process; who finds a device broken does too.
        tail = exited.log_tail[-_TAIL_CHARS:]
        lost = exited.signal == SIGABRT and not alone and _PEER_LOST.search(tail) and not _INFRASTRUCTURE.search(tail)
        return Symptom.PEER_LOST if lost else Symptom.KILLED
    if exited.exit_code is None:
        return Symptom.RANKS_VANISHED
    return Symptom.EXIT_CODE


FIRST_HAND_OF_NODE = frozenset({Symptom.KILLED, Symptom.INFRASTRUCTURE, Symptom.RANKS_VANISHED})
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
