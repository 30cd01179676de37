"""Aggregation of the vault's backup notices: a step of a node is backed up once all its ranks are."""

from __future__ import annotations

import msgspec

from holdfast.node.vault.messages import BackedUp, SealedStep
from holdfast.orders.backup import BackupOrder

STEPS_REMEMBERED = 8
"""Steps remembered for each rank. Ranks are at most one step apart, and one or two more are in transit."""


class BackupSum(msgspec.Struct, frozen=True, kw_only=True):
    """A step that is backed up: the keeper has the shards of all this node's ranks. `took_s`: the time of the
    slowest."""

    sealed: SealedStep
    keeper: str
    nbytes: int
    nbytes_shared: int
    took_s: float
    skipped: int


class BackupTally:
    """The backups made under one order. A step counts as backed up once the keeper has the shards of all this node's
    ranks."""

    def __init__(self, order: BackupOrder) -> None:
        self.order = order
        self._newest: dict[int, list[BackedUp]] = {rank: [] for rank in order.ranks}
        self._coming: dict[int, int | None] = {}
        self._skipped = 0
        self._taken: SealedStep | None = None

    def add(self, notice: BackedUp) -> None:
        """Count a backup; one of another job or of ranks that moved to another node is ignored."""
        order, name = self.order, notice.name
        if (name.job, name.submitted_ms, name.world_size) != (order.job, order.submitted_ms, order.world_size):
            return
        if name.rank in self._newest:
            self._look_for_coming(notice)
            self._newest[name.rank] = [*self._newest[name.rank], notice][-STEPS_REMEMBERED:]
            self._skipped += notice.skipped

    def follow(self, order: BackupOrder) -> None:
        """Continue with a changed order of the same generation."""
        if order.coming_step != self.order.coming_step:
            self._coming.clear()
        self.order = order

    @property
    def coming_step(self) -> int | None:
        """The first step, from the order's coming step on, that is backed up; None unless it is equal for all ranks."""
        steps = {self._coming.get(rank) for rank in self._newest}
        return steps.pop() if len(steps) == 1 else None

    @property
    def newest(self) -> SealedStep | None:
        """The newest step of which the keeper has the shards of all ranks; None: there is none."""
        first, *others = map(set, self._of_ranks())
        return max(first.intersection(*others), default=None)

    def _of_ranks(self) -> list[dict[SealedStep, BackedUp]]:
        return [{notice.sealed: notice for notice in notices} for notices in self._newest.values()]

    def _look_for_coming(self, notice: BackedUp) -> None:
        """Note the first step backed up from the order's `coming_step` on. A backup is known to be that one only if the
        one before it was seen and no step was skipped between them."""
        coming, before = self.order.coming_step, self._newest[notice.name.rank]
        if coming is None or notice.sealed < SealedStep(generation=self.order.generation, step=coming):
            return
        is_first = bool(before) and before[-1].sealed.step < coming and not notice.skipped
        self._coming.setdefault(notice.name.rank, notice.sealed.step if is_first else None)

    def take(self) -> BackupSum | None:
        """Return the newest complete step that has not been taken yet, with the number skipped since the last one."""
        of_ranks, newest = self._of_ranks(), self.newest
        if newest is None or (self._taken is not None and newest <= self._taken):
            return None
        parts = [notices[newest] for notices in of_ranks]
        self._taken, skipped, self._skipped = newest, self._skipped, 0
        return BackupSum(
            sealed=newest,
            keeper=parts[0].keeper,
            nbytes=sum(part.nbytes for part in parts),
            nbytes_shared=sum(part.nbytes_shared for part in parts),
            took_s=max(part.took_s for part in parts),
            skipped=skipped,
        )
