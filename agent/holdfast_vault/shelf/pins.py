"""The steps that a job would go back to after bad numbers. They stay in memory whatever comes after them (ADR 10).

The ckpt coordinator names them, the same for all nodes, before they are made. It cannot know which steps the script
saves, so it names the lowest number. Until it has named a certified one, the oldest stays: in the first generation that
is the same step for all ranks, and the first to be certified. A rank that moves to another node has it on other nodes.
"""

from __future__ import annotations

from collections.abc import Collection
from math import ceil
from typing import NamedTuple

from holdfast.node.vault.messages import SealedStep
from holdfast.orders.backup import BackupOrder
from holdfast_vault.cuts import Cut


class StepMark(NamedTuple):
    """The first step from `step` on that a generation has made."""

    generation: int
    step: int

    @property
    def first(self) -> SealedStep:
        """The step itself, if the script saves it."""
        return SealedStep(generation=self.generation, step=self.step)

    def found_in(self, sealed: Collection[SealedStep]) -> SealedStep | None:
        return min((each for each in sealed if self._may_be(each)), default=None)

    def _may_be(self, sealed: SealedStep) -> bool:
        return sealed.generation == self.generation and sealed.step >= self.step


class Pins(NamedTuple):
    """The step to go back to, and the one that is to take its place when it is certified; `complete` is the newest step
    that all nodes are known to have twice. While some rank keeps no steps, `frozen` is the last one that all ranks had.
    """

    certified: StepMark | None = None
    coming: StepMark | None = None
    complete: StepMark | None = None
    frozen: StepMark | None = None


def pins_of(order: BackupOrder) -> Pins:
    """Return the steps that a backup order pins in memory."""
    certified = coming = complete = frozen = None
    if order.certified_step is not None:
        certified = StepMark(order.certified_generation, order.certified_step)
    if order.coming_step is not None:
        # The first step of a block is sent: of a block that has begun before the coming step it may be an earlier one.
        every = max(1, order.every) if order.keeper else 1
        coming = StepMark(order.generation, ceil(order.coming_step / every) * every)
    if order.complete_step is not None:
        complete = StepMark(order.complete_generation, order.complete_step)
    if order.frozen_step is not None:
        frozen = StepMark(order.frozen_generation, order.frozen_step)
    return Pins(certified, coming, complete, frozen)


def pinned(sealed: Collection[SealedStep], pins: Pins | None) -> frozenset[SealedStep]:
    """Return those of the sealed steps that stay. `pins` None: none do."""
    if pins is None or not sealed:
        return frozenset()
    go_back_to = pins.certified.found_in(sealed) if pins.certified else min(sealed)
    coming = pins.coming.found_in(sealed) if pins.coming else None
    return frozenset(each for each in (go_back_to, coming) if each is not None)


def certified(sealed: Collection[SealedStep], pins: Pins | None) -> frozenset[SealedStep]:
    """Return the step here that is named as certified, if there is one."""
    mark = pins.certified if pins is not None else None
    found = mark.found_in(sealed) if mark is not None else None
    return frozenset() if found is None else frozenset({found})


def floor(sealed: Collection[SealedStep], pins: Pins | None, cut: Cut | None) -> frozenset[SealedStep]:
    """Return the sealed steps below which the job need not go back, whatever is lost with one more vault: the newest
    step that all ranks are known to have, and a frozen one.
    """
    newest = _newest_known(pins, cut)
    found = {newest.found_in(sealed) if isinstance(newest, StepMark) else newest, _frozen(pins, cut)}
    return frozenset(each for each in found if each is not None and each in sealed)


def lacks_floor(sealed: Collection[SealedStep], pins: Pins | None, cut: Cut | None) -> bool:
    """Return True if a step below which the job need not go back should be here and is not."""
    newest = _newest_known(pins, cut)
    expected = newest.first if isinstance(newest, StepMark) else newest
    return not {each for each in (expected, _frozen(pins, cut)) if each is not None} <= {*sealed}


def _newest_known(pins: Pins | None, cut: Cut | None) -> StepMark | SealedStep | None:
    known = [mark for mark in (pins.certified, pins.complete) if mark is not None] if pins is not None else []
    newest = max(known, key=lambda mark: (mark.generation, mark.step), default=None)
    return cut.kept if cut is not None and (newest is None or newest.generation < cut.generation) else newest


def _frozen(pins: Pins | None, cut: Cut | None) -> SealedStep | None:
    """Return the frozen step, unless the job has gone on from some step since."""
    frozen = pins.frozen if pins is not None else None
    if frozen is None or (cut is not None and cut.generation > frozen.generation):
        return None
    return frozen.first


def named(pins: Pins | None) -> frozenset[SealedStep]:
    """Return the steps that other nodes keep as well, even if they are not here: a new node has no earlier steps."""
    marks = (pins.certified, pins.complete) if pins is not None else ()
    return frozenset(it.first for it in marks if it is not None)


def in_the_past_of(kept: SealedStep | None, pinned: Collection[SealedStep]) -> tuple[SealedStep, ...]:
    """Return the steps before `kept` (None: no step) that a job going on from it keeps, in memory or on the disk."""
    if kept is None:
        return ()
    return tuple(sorted(each for each in pinned if each.generation <= kept.generation and each.step < kept.step))
