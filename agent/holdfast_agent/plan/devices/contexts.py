"""Decisions on processes that make a rank's context ahead. Pure."""

from __future__ import annotations

import hashlib
from typing import Annotated

import msgspec

from holdfast.node.rank_variables import RESERVED
from holdfast_agent.zygote.wire import RankExit, RankPlan

_OF_RANK = ("HOLDFAST_", "TORCHELASTIC_")
HOST_BYTES_MIN = 1 << 30
"""More than a driver and its libraries take of the host for a context."""
_OUT_OF_MEMORY = "OutOfMemoryError"


Text = Annotated[str, msgspec.Meta(max_length=100)]


class DeviceUsed(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of a rank's report `device_used`, after its first steps."""

    device: Text
    free_bytes: Annotated[int, msgspec.Meta(ge=0, le=1 << 53)] | None
    """Free memory of the device; None: the device does not report it."""
    changed: Annotated[tuple[Text, ...], msgspec.Meta(max_length=20)] = ()
    """Settings that the script makes before it first uses the device. A process with a context would ignore them."""


def context_kind(plan: RankPlan) -> str:
    """Return the kind of process with a context that can become this rank. Ranks that begin alike have the same one.

    "" if none can: a program without Python, an interpreter that the script prepares before it imports torch, a rank
    with files mounted over others.
    """
    if plan.is_program or plan.cover is not None or (plan.start != "fork" and not plan.warm):
        return ""
    own = {name: value for name, value in plan.environment.items() if name not in RESERVED}
    own = {name: value for name, value in own.items() if not name.startswith(_OF_RANK)}
    uid = -1 if plan.user is None else plan.user.uid
    begins_with = (plan.start, plan.python, plan.cwd, uid, plan.local_rank, plan.cpus, sorted(own.items()))
    # A hash, because variables are secrets, which the zygote must not know.
    return hashlib.sha256(msgspec.msgpack.encode(begins_with)).hexdigest()


def why_none(used: DeviceUsed, kind: str, room_bytes: int, host_bytes_each: int) -> str:
    """Return why no context is made ahead for this rank; "": one is. `host_bytes_each`: free memory of the host, for
    each rank of the node.
    """
    if not room_bytes:
        return "[jobs] context_room_bytes is 0"
    if not kind:
        return "nothing made ahead can become such a rank"
    if used.changed:
        return f"its script sets {', '.join(used.changed)} itself, which has no effect once there is a context"
    if used.free_bytes is None:
        return "the device does not report how much memory is free"
    if used.free_bytes < room_bytes:
        return (
            f"{_mib(used.free_bytes)} of {used.device} are free, and a context is made ahead from "
            f"{_mib(room_bytes)} on ([jobs] context_room_bytes)"
        )
    if host_bytes_each < HOST_BYTES_MIN:
        return f"{_mib(host_bytes_each)} of the host are free for each rank, and a process takes up to 1 GiB"
    return ""


def why_never_again(exit_report: RankExit, *, has_stepped: bool, had_contexts: bool) -> str:
    """Return why a job gets no contexts any more after this end of a rank; "": it may.

    A context is a help that is never worth a failure. So one failure counts against all, of whatever cause: memory of
    the device or the host that ran out, or an end before the first step.
    """
    exception = exit_report.exception
    if exception is not None and (
        exception.type.endswith(_OUT_OF_MEMORY) or "out of memory" in exception.message.lower()
    ):
        return f"rank {exit_report.rank} ran out of memory"
    if had_contexts and not has_stepped and exit_report.exit_code:
        return f"rank {exit_report.rank}, or one beside it, began with a context and failed before its first step"
    return ""


def _mib(nbytes: int) -> str:
    return f"{nbytes >> 20} MiB"
