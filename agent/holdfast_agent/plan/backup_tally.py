"""What a vault says of its copies on other nodes, added up: a step of a node is backed up when all its ranks are."""

from __future__ import annotations

import msgspec

from holdfast.node.vault.messages import BackedUp, SealedStep
from holdfast.orders.backup import BackupOrder

STEPS_REMEMBERED = 8
"""Of each rank. Ranks are at most one step apart, and what is sent of a rank one or two more."""


class BackupSum(msgspec.Struct, frozen=True, kw_only=True):
    """A step that all ranks of a node have on another one. `took_s` is that of the slowest rank."""

    sealed: SealedStep
    keeper: str
    nbytes: int
    nbytes_shared: int
    took_s: float
    skipped: int


class BackupTally:
    """The copies of one order."""

    def __init__(self, order: BackupOrder) -> None:
        self.order = order
        self._newest: dict[int, list[BackedUp]] = {rank: [] for rank in order.ranks}
        self._coming: dict[int, int | None] = {}
        self._skipped = 0
        self._told: SealedStep | None = None

    def add(self, notice: BackedUp) -> None:
        """Note a copy; one of another job, or of ranks that are elsewhere now, is none of this order's."""
        order, name = self.order, notice.name
        if (name.job, name.submitted_ms, name.world_size) != (order.job, order.submitted_ms, order.world_size):
            return
        if name.rank in self._newest:
            self._look_for_coming(notice)
            self._newest[name.rank] = [*self._newest[name.rank], notice][-STEPS_REMEMBERED:]
            self._skipped += notice.skipped

    def follow(self, order: BackupOrder) -> None:
        """The order has changed within its generation."""
        if order.coming_step != self.order.coming_step:
            self._coming.clear()
        self.order = order

    @property
    def coming_step(self) -> int | None:
        """The first step from the coming one on that all ranks have on another node, if it is the same for all."""
        steps = {self._coming.get(rank) for rank in self._newest}
        return steps.pop() if len(steps) == 1 else None

    def _look_for_coming(self, notice: BackedUp) -> None:
        """Only who saw the copy before it knows which one was first, and only if none was left out between them."""
        coming, before = self.order.coming_step, self._newest[notice.name.rank]
        if coming is None or notice.sealed < SealedStep(generation=self.order.generation, step=coming):
            return
        is_first = bool(before) and before[-1].sealed.step < coming and not notice.skipped
        self._coming.setdefault(notice.name.rank, notice.sealed.step if is_first else None)

    def take(self) -> BackupSum | None:
        """The newest step that is whole and has not been taken yet; with all that was skipped since the last one."""
        of_ranks = [{notice.sealed: notice for notice in notices} for notices in self._newest.values()]
        common = set.intersection(*(set(notices) for notices in of_ranks)) if of_ranks else set()
        newest = max(common, default=None)
        if newest is None or (self._told is not None and newest <= self._told):
            return None
        parts = [notices[newest] for notices in of_ranks]
        self._told, skipped, self._skipped = newest, self._skipped, 0
        return BackupSum(
            sealed=newest,
            keeper=parts[0].keeper,
            nbytes=sum(part.nbytes for part in parts),
            nbytes_shared=sum(part.nbytes_shared for part in parts),
            took_s=max(part.took_s for part in parts),
            skipped=skipped,
        )
