"""The choice of a rank's sealed steps that stay in memory.

Two policies, both of TRANSOM's (§IV-C): a number of the newest steps is wanted, and the memory of all ranks of a node
has a limit. Steps that are only wanted go when the limit is reached, the oldest first. Steps that are needed never go,
even over the limit: without them a recovery may find no step that all ranks have.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from holdfast.node.vault.messages import SealedStep

KEPT_MIN = 2
REFUSALS_MAX = 8
"""Saves that a rank may be refused for want of memory before the steps of its pins are given up for them."""


def needed(
    sealed: Iterable[SealedStep], sent: Collection[SealedStep], pinned: Collection[SealedStep]
) -> frozenset[SealedStep]:
    """Return the steps a recovery may need (see `holdfast_vault.shelf.shelf`), and the `pinned`, which stay anyway."""
    there = sorted(sealed, reverse=True)
    return frozenset(there[:KEPT_MIN]) | {step for step in there if step in sent or step in pinned}


def unwanted(sealed: Iterable[SealedStep], needed: Collection[SealedStep], steps_wanted: int) -> tuple[SealedStep, ...]:
    """Return the steps whose memory the next one takes, the oldest first."""
    there = sorted(sealed, reverse=True)
    return tuple(step for step in reversed(there[steps_wanted:]) if step not in needed)


class SpareMemory(NamedTuple):
    """Memory that can be given back: nothing needs it. `sealed` None: it is empty. `number` belongs to the caller."""

    sealed: SealedStep | None
    nbytes: int
    number: int
    is_floor: bool = False


def given_back(spares: Iterable[SpareMemory], nbytes: int) -> tuple[SpareMemory, ...] | None:
    """Return what to give back for `nbytes`: the empty first, then the oldest, floors last. None: not enough."""

    def worth(spare: SpareMemory) -> tuple[object, ...]:
        return spare.is_floor, spare.sealed is not None, spare.sealed or _NOTHING, -spare.nbytes

    chosen: list[SpareMemory] = []
    for spare in sorted(spares, key=worth):
        if nbytes <= 0:
            break
        chosen.append(spare)
        nbytes -= spare.nbytes
    return tuple(chosen) if nbytes <= 0 else None


_NOTHING = SealedStep(generation=-1, step=-1)
