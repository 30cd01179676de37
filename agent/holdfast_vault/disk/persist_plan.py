"""Which of the sealed steps go to the disk, and what becomes of those that are on their way. Pure.

All nodes of a job write the steps whose number `every` divides, without a word to each other: a step is whole on the
disk when all of them have written it. A node that is still busy with one leaves the next one out, for memory that waits
for a slow disk is memory that training may need. What the others wrote of that step is then removed.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum

import msgspec

from holdfast.node.vault.messages import SealedStep

UNFINISHED_MAX = 4
"""Steps that a part of the job's nodes has written and the others may still write, being slower."""


class PersistTurn(StrEnum):
    """What a sealed shard is to the steps that are written."""

    NOT_DUE = "not due"
    WAITS = "waits"  # for the other ranks of the node
    BEGINS = "begins"  # all ranks of the node have the step now
    LEFT_OUT = "left out"  # the step before it is still being written


class GatheredStep(msgspec.Struct, frozen=True, kw_only=True):
    """The newest due step of a node, and the ranks that have sealed it."""

    sealed: SealedStep
    there: frozenset[int] = frozenset()


def turn_of(
    gathered: GatheredStep | None, is_busy: bool, rank: int, sealed: SealedStep, ranks: Collection[int], every: int
) -> tuple[GatheredStep | None, PersistTurn]:
    """What becomes of a shard that has just been sealed. `is_busy`: what was gathered is being written."""
    if not every or sealed.step % every or (gathered is not None and sealed < gathered.sealed):
        return gathered, PersistTurn.NOT_DUE
    if is_busy:
        return gathered, PersistTurn.LEFT_OUT
    if gathered is None or sealed > gathered.sealed:
        gathered = GatheredStep(sealed=sealed)
    gathered = msgspec.structs.replace(gathered, there=gathered.there | {rank})
    return gathered, PersistTurn.BEGINS if gathered.there >= set(ranks) else PersistTurn.WAITS


class PublishPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What is to become of what is written and not published: `waiting` is left as it is."""

    publish: int | None
    drop: tuple[int, ...]
    waiting: tuple[int, ...]


def plan_publishing(missing: dict[int, int]) -> PublishPlan:
    """`missing` has, of each step that is written and not published, how many ranks have not written it yet.

    The newest whole step is published. What is older is of no use then, and neither is what too many have overtaken.
    """
    publish = max((step for step, ranks in missing.items() if not ranks), default=None)
    newer = sorted((step for step in missing if publish is None or step > publish), reverse=True)
    return PublishPlan(
        publish=publish,
        drop=tuple(sorted(missing.keys() - {publish, *newer[:UNFINISHED_MAX]})),
        waiting=tuple(newer[:UNFINISHED_MAX]),
    )
