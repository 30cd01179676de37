"""The file in memory that has the plans of ranks, and the order that they follow from.

Both contain secrets of the job, and the zygote's memory is inherited by the ranks of later jobs. So the zygote only
passes the descriptor on: a fork reads its own plan, and an agent that comes back reads the order.
"""

from __future__ import annotations

import fcntl
import itertools
import os

import msgspec

from holdfast_agent.zygote.wire import Part, RankPlan, RankSlot, StartPlanned, StartRanks

_plans = msgspec.msgpack.Decoder(RankPlan)


def write(command: StartRanks) -> tuple[StartPlanned, int]:
    """Return the command without its secrets, and the descriptor of the file to send with it. Raises OSError."""
    bodies = [*map(msgspec.msgpack.encode, command.ranks), command.order]
    ends = list(itertools.accumulate(map(len, bodies)))
    *parts, order = [(end - len(body), len(body)) for end, body in zip(ends, bodies, strict=True)]
    slots = tuple(
        RankSlot(
            rank=plan.rank,
            local_rank=plan.local_rank,
            start=plan.start,
            log_stem=plan.log_stem,
            error_file=plan.error_file,
            plan=part,
            user=plan.user,
            shown=plan.shown,
            copies=plan.copies,
            warm=plan.warm,
            context=plan.context,
        )
        for plan, part in zip(command.ranks, parts, strict=True)
    )
    return StartPlanned(fence=command.fence, ranks=slots, order=order), _file(b"".join(bodies))


def _file(content: bytes) -> int:
    descriptor = os.memfd_create("holdfast-plans", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(content)
        # All forks and agents read the same.
        unchanging = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, unchanging)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read(descriptor: int, part: Part) -> bytes:
    """Return this part of the file."""
    offset, length = part
    return os.pread(descriptor, length, offset)


def read_plan(descriptor: int, slot: RankSlot) -> RankPlan:
    """Return the plan of this rank."""
    return _plans.decode(read(descriptor, slot.plan))
