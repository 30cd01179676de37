"""The protection of each tensor of a state while it is copied: decided from what may write to it meanwhile.

Copies of one step run on a stream of their own while the next forward and backward run. What an optimizer changes stays
as it is until the optimizer's next step, which waits on the device until it is copied. Everything else may change at
once, so it is first copied on the device, in the order of training: its shadow.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

SHADOW_SHARE_MAX = 1 / 8
"""Largest share of the free device memory that shadows of tensors without an optimizer may take unasked."""


HOST_BYTES_MIN = 16 << 20
HOST_SHARE_MAX = 1 / 64
"""Limits on the state that lies on the host, whichever is more: counters of steps, states of random generators."""


class StateTensor(NamedTuple):
    """A tensor of the state, once for all entries that share its memory."""

    nbytes: int
    address: int
    storage: int
    """Address of the first byte of its storage: tensors of one storage may be copied as one."""
    owner: int | None
    """Place in the order in which optimizers update; None: no optimizer changes it."""
    is_host: bool = False
    is_plain: bool = True
    """Its bytes lie one after the other, in the order of its elements."""


class Guard(IntEnum):
    """In the order in which they are copied: what others wait for comes first."""

    HOST = 0
    """Lies in the host's memory, and is copied within the call."""
    AWAITED = 1
    """Training waits on the device for its copy, in every step: there is no memory for a shadow."""
    GATED = 2
    """The optimizer's next step waits on the device for its copy."""
    SHADOWED = 3
    """Is copied on the device first, and from there to the host. Nothing waits."""


class CopySizes(NamedTuple):
    small_bytes: int = 1 << 20
    """Size below which a tensor is first copied on the device, together with all other small ones: a separate copy to
    the host takes longer to start than to run."""
    slice_bytes: int = 32 << 20
    """Size of the largest copy. Larger ones are not faster, and all other users of the link wait for a copy."""
    mark_bytes: int = 64 << 20
    """Distance of the marks, in bytes, at which the host checks how far the device has come."""


SIZES = CopySizes()


class Shadowing(NamedTuple):
    """`of_all`: not even an optimizer's tensors are gated. `bytes_max`: memory for shadows."""

    of_all: bool
    bytes_max: int


def guards_of(
    sources: Sequence[StateTensor], shadowing: Shadowing, small_bytes: int = SIZES.small_bytes
) -> list[Guard]:
    """Return the protection of each source. Where there is memory for some shadows only, the smallest get them."""
    chosen: dict[int, Guard] = {}
    left = shadowing.bytes_max
    for index in sorted(range(len(sources)), key=lambda index: (sources[index].nbytes, index)):
        source = sources[index]
        if source.is_host:
            chosen[index] = Guard.HOST
        elif not source.is_plain or source.nbytes < small_bytes:
            # Of what is not plain there is no row-major copy but this one.
            chosen[index] = Guard.SHADOWED
            left -= source.nbytes
        elif source.owner is not None and not shadowing.of_all:
            chosen[index] = Guard.GATED
        elif source.nbytes <= left:
            chosen[index] = Guard.SHADOWED
            left -= source.nbytes
        else:
            chosen[index] = Guard.AWAITED
    return [chosen[index] for index in range(len(sources))]


def is_of_device(sources: Sequence[StateTensor]) -> bool:
    """Return True if a state lies on the device but for a small part.

    What lies on the host is copied within the call; of more than that write protection makes a better job.
    """
    on_host = sum(it.nbytes for it in sources if it.is_host)
    on_device = sum(it.nbytes for it in sources if not it.is_host)
    return on_host <= max(HOST_BYTES_MIN, on_device * HOST_SHARE_MAX)


class WhenBusy(IntEnum):
    """Treatment of a step that is to be kept while the one before is not sealed yet."""

    SKIP = 0
    WAIT = 1


def when_busy(world_size: int) -> WhenBusy:
    """Return what a rank does. Alone it skips the step and waits for nothing.

    One of several waits: if each skipped other steps, there might be no step that all ranks have.
    """
    return WhenBusy.SKIP if world_size == 1 else WhenBusy.WAIT


def is_logged_now(count: int) -> bool:
    """Return True if something that happens again is logged this time: 1, 2, 4, 8, ..."""
    return count & (count - 1) == 0
