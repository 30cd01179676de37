"""Checkpoint backups on other nodes: hand orders to the vault, and publish the vault's notices.

The coordinator's order names keeper and sources, the controller's order has the job's token. The vault gets both as
soon as both are known, and again after it restarts.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import datetime, timedelta
from typing import Any

import structlog

from holdfast.clock import Now
from holdfast.events import (
    CheckpointSaved,
    CopiesMeasured,
    CopiesRefused,
    Event,
    KeepingInterrupted,
    ShardDamaged,
    ShardsBackedUp,
    ShardsFetched,
    StepNotPersisted,
)
from holdfast.fresh_ids import uuid7
from holdfast.node.vault.messages import (
    BackedUp,
    CopiesRefusal,
    DamageNotice,
    Fetched,
    Notice,
    NotKept,
    NotPersisted,
    Persisted,
    Serve,
)
from holdfast.orders.backup import BackupOrder, submission_ms
from holdfast.orders.node import NodeOrder, Placement
from holdfast.orders.signatures import SignedOrder
from holdfast_agent.companions.vault_link import VaultLink
from holdfast_agent.plan.backup_tally import BackupSum, BackupTally

REPORT_EVERY_S = 2.0
COMPLAIN_EVERY = timedelta(seconds=30)

log = structlog.get_logger(__name__)


class Backups:
    """The backups of one node. `publish` emits an event."""

    def __init__(
        self,
        node: str,
        vault: VaultLink,
        publish: Callable[[Event], None],
        now: Now,
    ) -> None:
        self._node = node
        self._vault = vault
        self._publish = publish
        self._now = now
        self._order: BackupOrder | None = None
        self._next: BackupOrder | None = None
        """A backup order for another job than the one that runs here, held until that job is placed."""
        self._placement: Placement | None = None
        self._tally: BackupTally | None = None
        self._reported: tuple[int, str] | None = None
        """Generation and keeper of the last `shards_backed_up`, which is published once for each pair."""
        self._last_complaint_at: datetime | None = None
        self._suppressed_complaints = 0
        self._last_refusal: tuple[int, str, str] | None = None
        self._changed = asyncio.Event()
        self._interrupted_under: tuple[int, int, int] | None = None
        """Age of the order under which `keeping_interrupted` was published."""
        vault.on_notice = self._noticed
        vault.on_lost = self._lost

    def placed(self, order: NodeOrder | None) -> None:
        """Note the node's order. Idle orders (copies here may be a shard's last), checks and replays change nothing."""
        if order is None or order.placement is None or order.placement.purpose != "train":
            return
        if order.placement != self._placement:
            self._placement = placement = order.placement
            if placement.submitted_at is not None:
                size = placement.job.nnodes * placement.job.nproc_per_node
                submitted_ms = submission_ms(placement.submitted_at)
                self._vault.serve(Serve(job=placement.job.name, submitted_ms=submitted_ms, world_size=size))
            if self._next is not None and self._is_placed(self._next):
                self._take(self._next)
            else:
                self._hand_over()

    async def follow(self, orders: AsyncIterator[SignedOrder[BackupOrder]]) -> None:
        async for signed in orders:
            order, present = signed.order, self._order
            if present is None or not self._is_placed(present):
                self._take(order)
            elif not self._is_placed(order):
                # The node's next job, or an old order that was published again.
                self._next = order
            elif order.age >= present.age:
                self._take(order)
            else:
                log.warning("a backup order is older than the present one", order=order.age, present=present.age)

    def _take(self, order: BackupOrder) -> None:
        before, self._order, self._next = self._order, order, None
        if self._tally is None or before is None or _life(before) != _life(order):
            self._tally, self._reported = BackupTally(order), None
        else:
            self._tally.follow(order)
        self._hand_over()

    def _is_placed(self, order: BackupOrder) -> bool:
        placement = self._placement
        if placement is None or placement.submitted_at is None:
            return False
        return (order.job, order.submitted_ms) == (placement.job.name, submission_ms(placement.submitted_at))

    async def report(self) -> None:
        """Publish which step is backed up, at most every two seconds, until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            whole = self._tally.take() if self._tally is not None else None
            if whole is None:
                continue
            assert self._tally is not None
            self._copied(self._tally, whole)
            await asyncio.sleep(REPORT_EVERY_S)

    def _hand_over(self) -> None:
        order, placement = self._order, self._placement
        if order is not None and placement is not None and self._is_placed(order):
            self._vault.assign(order, placement.job.token)

    def _noticed(self, notice: Notice) -> None:
        order = self._order if self._order is not None and self._order.job == notice.name.job else None
        if isinstance(notice, DamageNotice):
            # Published without an order too: the shard may belong to an earlier job.
            self._damaged(order, notice)
            return
        if order is None:
            return
        match notice:
            case BackedUp():
                if self._tally is not None:
                    self._tally.add(notice)
                    self._changed.set()
            case Fetched():
                log.info("a shard came from another node", rank=notice.name.rank, step=notice.sealed.step)
                self._publish(
                    ShardsFetched(
                        **self._common(order, notice.sealed.generation),
                        step=notice.sealed.step,
                        ranks=(notice.name.rank,),
                        keeper=notice.source,
                        fetched_bytes=notice.nbytes,
                        took_s=notice.took_s,
                    )
                )
            case Persisted():
                self._publish(
                    CheckpointSaved(
                        **self._common(order, notice.sealed.generation),
                        step=notice.sealed.step,
                        path=notice.path,
                        checkpoint_bytes=notice.nbytes,
                        took_s=notice.took_s,
                        steps=notice.steps,
                    )
                )
            case NotPersisted():
                log.warning("a step was not persisted", step=notice.sealed.step, reason=notice.reason)
                self._not_persisted(order, notice)
            case NotKept(sealed=sealed, reason=reason):
                self._interrupted(order, reason, sealed.step)
            case CopiesRefusal():
                self._refused(order, notice)

    def _copied(self, tally: BackupTally, whole: BackupSum) -> None:
        newest: dict[str, Any] = {
            "step": whole.sealed.step,
            "ranks": tuple(tally.order.ranks),
            "keeper": whole.keeper,
            "backup_bytes": whole.nbytes,
            "replicated_bytes": whole.nbytes_shared,
            "took_s": whole.took_s,
        }
        generation = whole.sealed.generation
        measured = CopiesMeasured(
            **self._common(tally.order, generation), **newest, skipped=whole.skipped, coming_step=tally.coming_step
        )
        if self._reported != (generation, whole.keeper):
            self._reported = generation, whole.keeper
            self._publish(ShardsBackedUp(**self._common(tally.order, generation), **newest))
        self._publish(measured)

    def _not_persisted(self, order: BackupOrder, notice: NotPersisted) -> None:
        if self._last_complaint_at is not None and self._now() < self._last_complaint_at + COMPLAIN_EVERY:
            self._suppressed_complaints += 1
            return
        self._publish(
            StepNotPersisted(
                **self._common(order, notice.sealed.generation),
                step=notice.sealed.step,
                reason=notice.reason,
                others=self._suppressed_complaints,
            )
        )
        self._last_complaint_at, self._suppressed_complaints = self._now(), 0

    def _lost(self) -> None:
        if self._order is not None and self._is_placed(self._order):
            self._interrupted(self._order, "its vault is lost with its successor")

    def _interrupted(self, order: BackupOrder, reason: str, not_kept: int | None = None) -> None:
        """Publish, once for each order, that steps are not kept: the coordinator's next order names the step that all
        nodes keep meanwhile. `not_kept`: the step that failed; None: all steps are lost."""
        newest = self._tally.newest if self._tally is not None else None
        if newest is None or order.frozen_step is not None or order.age == self._interrupted_under:
            return
        self._interrupted_under = order.age
        log.warning("steps are not kept", newest=newest.step, reason=reason)
        common = self._common(order, newest.generation)
        self._publish(KeepingInterrupted(**common, step=newest.step, not_kept=not_kept, reason=reason))

    def _refused(self, order: BackupOrder, notice: CopiesRefusal) -> None:
        refusal = (order.generation, notice.keeper, notice.reason)
        if refusal != self._last_refusal:
            self._last_refusal = refusal
            log.error("no copies go to another node", keeper=notice.keeper, reason=notice.reason)
            self._publish(
                CopiesRefused(**self._common(order, order.generation), keeper=notice.keeper, reason=notice.reason)
            )

    def _damaged(self, order: BackupOrder | None, notice: DamageNotice) -> None:
        name, sealed = notice.name, notice.sealed
        log.error("a shard is damaged", rank=name.rank, step=sealed.step, detail=notice.detail)
        self._publish(
            ShardDamaged(
                **self._common(order, sealed.generation, name.job),
                rank=name.rank,
                step=sealed.step,
                held_by=notice.node or self._node,
                detail=notice.detail,
            )
        )

    def _common(self, order: BackupOrder | None, generation: int, job: str = "") -> dict[str, Any]:
        return {
            "id": uuid7(),
            "at": self._now(),
            "source": f"agent/{self._node}",
            "node": self._node,
            "job": order.job if order is not None else job,
            "generation": generation,
            "cause": order.cause if order is not None else None,
        }


def _life(order: BackupOrder) -> tuple[int, int]:
    return (order.submitted_ms, order.generation)
