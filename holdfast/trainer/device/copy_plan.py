"""The plan of a step's copies: where each tensor lies in the shard, its slices, and when progress is reported.

The shard is filled from its beginning, so that one number shows how far it is: its node hashes behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.trainer.device.guards import SIZES, CopySizes, Guard, StateTensor

ALIGNMENT = 64
SHADOW = -1
"""Source of a copy: the shadows, which lie in one piece of device memory as they lie in the shard."""


class Copy(NamedTuple):
    """`nbytes` from byte `begin` of a source to byte `offset` of the shard."""

    source: int
    begin: int
    nbytes: int
    offset: int


class Mark(NamedTuple):
    """An event after the first `copies` copies: then the first `up_to` bytes of the shard are there."""

    copies: int
    up_to: int


class CopyPlan(NamedTuple):
    """The copies of one step. All offsets and sizes are in bytes."""

    guards: tuple[Guard, ...]
    offsets: tuple[int, ...]
    """Offset of each source in the shard."""
    sizes: tuple[int, ...]
    nbytes: int
    shadow_begin: int
    """Offset from which on the shard has the shadows."""
    copies: tuple[Copy, ...]
    marks: tuple[Mark, ...]
    awaited: int | None
    """Index of the mark that training waits for at once; None: for none."""
    gate: int | None
    """Index of the mark that the optimizer's next step waits for."""

    def of(self, guard: Guard) -> list[int]:
        """Return the sources with this protection, in the order of the shard."""
        found = [index for index, each in enumerate(self.guards) if each is guard]
        return sorted(found, key=self.offsets.__getitem__)


def plan_copies(sources: Sequence[StateTensor], guards: Sequence[Guard], sizes: CopySizes = SIZES) -> CopyPlan:
    """Return the plan. Sources lie in the shard by protection, those of optimizers in the order of their updates."""

    def place(index: int) -> tuple[int, int, int]:
        owner = sources[index].owner
        return guards[index], owner if owner is not None else len(sources), index

    offsets, end = [0] * len(sources), 0
    order = sorted(range(len(sources)), key=place)
    ends = dict.fromkeys(Guard, 0)
    for index in order:
        offsets[index] = end
        end += -(-sources[index].nbytes // ALIGNMENT) * ALIGNMENT
        ends[guards[index]] = end
    shadow_begin = max(ends[guard] for guard in Guard if guard is not Guard.SHADOWED)
    copies, sections = list[Copy](), dict[Guard, int]()
    for guard in (Guard.AWAITED, Guard.GATED):
        runs = _runs(sources, offsets, [index for index in order if guards[index] is guard and sources[index].nbytes])
        copies += [part for run in runs for part in _sliced(run, sizes.slice_bytes)]
        sections[guard] = len(copies)
    if end > shadow_begin:
        copies += _sliced(Copy(SHADOW, 0, end - shadow_begin, shadow_begin), sizes.slice_bytes)
    marks = _marks(copies, sorted(set(sections.values())), end, sizes.mark_bytes)
    before = {mark.copies: index for index, mark in enumerate(marks)}
    awaited, gated = sections[Guard.AWAITED], sections[Guard.GATED]
    return CopyPlan(
        guards=tuple(guards),
        offsets=tuple(offsets),
        sizes=tuple(source.nbytes for source in sources),
        nbytes=end,
        shadow_begin=shadow_begin,
        copies=tuple(copies),
        marks=marks,
        awaited=before[awaited] if awaited else None,
        gate=before[gated] if gated > awaited else None,
    )


def _runs(sources: Sequence[StateTensor], offsets: Sequence[int], order: Sequence[int]) -> list[Copy]:
    """Return one copy for each stretch of sources that lie in a storage as they lie in the shard."""
    runs: list[Copy] = []
    for index in order:
        source, offset = sources[index], offsets[index]
        if runs:
            first = sources[runs[-1].source]
            begin = source.address - first.address
            end = runs[-1].offset + runs[-1].nbytes
            if source.storage == first.storage and begin == offset - runs[-1].offset and offset - end < ALIGNMENT:
                runs[-1] = runs[-1]._replace(nbytes=begin + source.nbytes)
                continue
        runs.append(Copy(index, 0, source.nbytes, offset))
    return runs


def _sliced(copy: Copy, slice_bytes: int) -> list[Copy]:
    """Return the copy in slices that end where multiples of their size do in the shard."""
    slices: list[Copy] = []
    source, begin, nbytes, offset = copy
    while nbytes:
        part = min(nbytes, slice_bytes - offset % slice_bytes)
        slices.append(Copy(source, begin, part, offset))
        begin, nbytes, offset = begin + part, nbytes - part, offset + part
    return slices


def _marks(copies: Sequence[Copy], sections: Sequence[int], end: int, mark_bytes: int) -> tuple[Mark, ...]:
    """Return a mark after every `mark_bytes`, at the end of each section, and at the end of all."""
    marks: list[Mark] = []
    pending = 0
    for count, copy in enumerate(copies, start=1):
        pending += copy.nbytes
        if pending >= mark_bytes or count in sections or count == len(copies):
            up_to = end if count == len(copies) else copy.offset + copy.nbytes
            marks.append(Mark(count, up_to))
            pending = 0
    return tuple(marks)
