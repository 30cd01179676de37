"""The steps that a job would go back to after bad numbers: they stay in memory, whatever comes after (ADR 10). Pure.

Which ones says the ckpt coordinator, the same for all nodes. Until it has named one, the oldest stays: in the first
generation that is the same step for all ranks, and the first to be certified.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from holdfast.backup_orders import BackupOrder
from holdfast.vault_wire import SealedStep


class Pins(NamedTuple):
    """The step to go back to, and the one that is to take its place when it is certified."""

    certified: SealedStep | None = None
    coming: SealedStep | None = None


def pins_of(order: BackupOrder) -> Pins:
    """What an order names."""
    certified = coming = None
    if order.certified_step is not None:
        certified = SealedStep(generation=order.certified_generation, step=order.certified_step)
    if order.coming_step is not None:
        coming = SealedStep(generation=order.generation, step=order.coming_step)
    return Pins(certified, coming)


def pinned(sealed: Collection[SealedStep], pins: Pins | None) -> frozenset[SealedStep]:
    """Those of the sealed steps that stay. `pins` None: none do."""
    if pins is None or not sealed:
        return frozenset()
    return frozenset(each for each in sealed if each in (pins.certified or min(sealed), pins.coming))


def in_the_past_of(kept: SealedStep | None, pinned: Collection[SealedStep]) -> tuple[SealedStep, ...]:
    """Those that a job keeps behind it when it goes on from `kept`; None: from something that is not in memory."""
    if kept is None:
        return ()
    return tuple(sorted(each for each in pinned if each.generation <= kept.generation and each.step < kept.step))
