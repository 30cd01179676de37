"""The choice of the sealed steps that go to the disk.

All nodes of a job write the same steps without talking to each other (`BackupOrder.is_persisted`): a step is complete
on the disk when all of them have written it. A node that is still busy with one step leaves the next one out, because
memory that waits for a slow disk is memory that training may need. What the others wrote of that step is then removed.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum

import msgspec

from holdfast.node.vault.messages import SealedStep

UNFINISHED_MAX = 4
"""Steps that a part of the job's nodes has written and the others may still write, being slower."""


class PersistTurn(StrEnum):
    """State of a sealed shard with regard to the disk."""

    NOT_DUE = "not due"
    WAITS = "waits"  # for the other ranks of the node
    BEGINS = "begins"  # all ranks of the node have the step now
    LEFT_OUT = "left out"  # the step before it is still being written


class GatheredStep(msgspec.Struct, frozen=True, kw_only=True):
    """The newest due step of a node, and the ranks that have sealed it."""

    sealed: SealedStep
    there: frozenset[int] = frozenset()


def turn_of(
    gathered: GatheredStep | None, is_busy: bool, rank: int, sealed: SealedStep, ranks: Collection[int], is_due: bool
) -> tuple[GatheredStep | None, PersistTurn]:
    """Decide about a shard that has just been sealed. `is_busy`: the gathered step is being written. `is_due`: it is
    one of the steps for the disk.
    """
    if not is_due or (gathered is not None and sealed < gathered.sealed):
        return gathered, PersistTurn.NOT_DUE
    if is_busy:
        return gathered, PersistTurn.LEFT_OUT
    if gathered is None or sealed > gathered.sealed:
        gathered = GatheredStep(sealed=sealed)
    gathered = msgspec.structs.replace(gathered, there=gathered.there | {rank})
    return gathered, PersistTurn.BEGINS if gathered.there >= set(ranks) else PersistTurn.WAITS


class PublishPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Decision about the steps that are written and not published; those in `waiting` stay as they are."""

    publish: int | None
    drop: tuple[int, ...]
    waiting: tuple[int, ...]


def plan_publishing(missing: dict[int, int]) -> PublishPlan:
    """Decide which of the written, unpublished steps to publish, drop or wait for; `missing` has the number of ranks
    that have not written a step yet. The newest complete step is published. Older ones are then of no use, and neither
    are those overtaken by too many.
    """
    publish = max((step for step, ranks in missing.items() if not ranks), default=None)
    newer = sorted((step for step in missing if publish is None or step > publish), reverse=True)
    return PublishPlan(
        publish=publish,
        drop=tuple(sorted(missing.keys() - {publish, *newer[:UNFINISHED_MAX]})),
        waiting=tuple(newer[:UNFINISHED_MAX]),
    )
