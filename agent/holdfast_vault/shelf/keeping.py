"""Which of the sealed steps of a rank stay in memory, and which make room for the next. Pure.

Two policies, both of TRANSOM's (§IV-C): the newest so many steps are wanted, and there is a limit to the memory of all
ranks of a node. What is only wanted goes when the limit is reached, the oldest first. What is needed never goes, be it
over the limit: without it a recovery may find no step that all ranks have.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from holdfast.node.vault.messages import SealedStep

KEPT_MIN = 2


def needed(
    sealed: Iterable[SealedStep], sent: Collection[SealedStep], pinned: Collection[SealedStep]
) -> frozenset[SealedStep]:
    """The steps that a recovery may need: see `holdfast_vault.shelf.shelf` for the newest and those that were sent.

    `pinned` are those that are to stay whatever comes after them.
    """
    there = sorted(sealed, reverse=True)
    return frozenset(there[:KEPT_MIN]) | {step for step in there if step in sent or step in pinned}


def unwanted(sealed: Iterable[SealedStep], needed: Collection[SealedStep], steps_wanted: int) -> tuple[SealedStep, ...]:
    """The steps whose memory the next one takes, the oldest first."""
    there = sorted(sealed, reverse=True)
    return tuple(step for step in reversed(there[steps_wanted:]) if step not in needed)


class SpareMemory(NamedTuple):
    """Memory that can be given back: what nobody needs. `sealed` None: nothing is in it. `number` is the asker's."""

    sealed: SealedStep | None
    nbytes: int
    number: int


def given_back(spares: Iterable[SpareMemory], nbytes: int) -> tuple[SpareMemory, ...] | None:
    """What to give back for `nbytes`: the empty first, then the oldest. None: there is not that much."""
    chosen: list[SpareMemory] = []
    for spare in sorted(spares, key=lambda each: (each.sealed is not None, each.sealed or _NOTHING, -each.nbytes)):
        if nbytes <= 0:
            break
        chosen.append(spare)
        nbytes -= spare.nbytes
    return tuple(chosen) if nbytes <= 0 else None


_NOTHING = SealedStep(generation=-1, step=-1)
