"""What an agent says of what its vault tells."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from holdfast.bus.in_memory import MemoryBroker
from holdfast.events import (
    CheckpointSaved,
    CopiesMeasured,
    CopiesRefused,
    Event,
    KeepingInterrupted,
    ShardDamaged,
    ShardsBackedUp,
    StepNotPersisted,
)
from holdfast.fresh_ids import uuid7
from holdfast.node.vault.messages import (
    BackedUp,
    CopiesRefusal,
    DamageNotice,
    Fetched,
    NotKept,
    NotPersisted,
    Persisted,
    SealedStep,
    ShardName,
)
from holdfast.orders.backup import BackupOrder, submission_ms
from holdfast.orders.signatures import SignedOrder
from holdfast.subjects import DESIRED_BUCKET
from holdfast_agent.companions.backups import Backups
from holdfast_agent.companions.vault_link import VaultLink
from holdfast_agent.order_watch import OrderReader
from holdfast_agent.plan.backup_tally import BackupSum, BackupTally
from tests.scenes.agent import START, order
from tests.scenes.order_keys import KEYS, signed

NAME = ShardName(job="before", submitted_ms=1, world_size=2, rank=1)
SEALED = SealedStep(generation=3, step=7)


def test_damage_is_said_also_of_a_job_that_the_agent_has_no_order_of(tmp_path: Path) -> None:
    said: list[Event] = []
    vault = VaultLink(tmp_path, "127.0.0.1", 1.0, None)
    Backups("a", vault, said.append, lambda: datetime(2026, 1, 1, tzinfo=UTC))
    vault.on_notice(Fetched(name=NAME, sealed=SEALED, source="b", nbytes=1, took_s=0.1))
    vault.on_notice(DamageNotice(name=NAME, sealed=SEALED, detail="one of four chunks"))
    (event,) = said
    assert isinstance(event, ShardDamaged)
    assert (event.job, event.generation, event.rank, event.step) == ("before", 3, 1, 7)
    assert (event.held_by, event.cause, event.detail) == ("a", None, "one of four chunks")


async def test_steps_on_the_disk_are_said_and_those_that_are_not_every_half_minute(tmp_path: Path) -> None:
    said: list[Event] = []
    now = datetime(2026, 1, 1, tzinfo=UTC)
    vault = VaultLink(tmp_path, "127.0.0.1", 1.0, None)
    backups = Backups("a", vault, said.append, lambda: now)
    order = BackupOrder(
        node="a", job="before", submitted_ms=1, world_size=2, generation=3, node_rank=0, nproc_per_node=2, cause=uuid7()
    )
    bus = MemoryBroker().client("agent")
    await bus.put(DESIRED_BUCKET, BackupOrder.key_of("a"), signed(order))
    following = asyncio.create_task(backups.follow(OrderReader("a", KEYS, lambda *_: None).for_node(bus, BackupOrder)))

    def tell(step: int) -> None:
        vault.on_notice(NotPersisted(name=NAME, sealed=SealedStep(generation=3, step=step), reason=f"not {step}"))

    try:
        while not said:
            vault.on_notice(Persisted(name=NAME, sealed=SEALED, path="/p", nbytes=9, took_s=0.5, steps=(5, 7)))
            await asyncio.sleep(0)
        for step in (8, 9, 10):
            tell(step)
        now += timedelta(seconds=31)
        tell(11)
        for reason in ("expired", "expired", "of another node"):
            vault.on_notice(CopiesRefusal(name=NAME, keeper="b", reason=reason))
    finally:
        following.cancel()
    saved, first, second, *refused = said
    assert isinstance(saved, CheckpointSaved)
    assert (saved.step, saved.path, saved.checkpoint_bytes, saved.steps) == (7, "/p", 9, (5, 7))
    assert (saved.job, saved.generation, saved.node, saved.cause) == ("before", 3, "a", order.cause)
    assert isinstance(first, StepNotPersisted) and isinstance(second, StepNotPersisted)
    assert (first.step, first.reason, first.others) == (8, "not 8", 0)
    assert (second.step, second.reason, second.others) == (11, "not 11", 2)
    assert [(each.keeper, each.reason) for each in refused if isinstance(each, CopiesRefused)] == [
        ("b", "expired"),
        ("b", "of another node"),
    ]


async def test_an_interruption_is_reported_once_for_each_order_unless_a_step_is_frozen(tmp_path: Path) -> None:
    said: list[Event] = []
    vault = VaultLink(tmp_path, "127.0.0.1", 1.0, None)
    backups = Backups("a", vault, said.append, lambda: START)
    name = msgspec.structs.replace(NAME, job="job-1", world_size=4, submitted_ms=submission_ms(START))

    def refuse(step: int) -> None:
        vault.on_notice(NotKept(name=name, sealed=SealedStep(generation=2, step=step), reason="no memory"))

    def copied(rank: int, step: int) -> None:
        sealed = SealedStep(generation=2, step=step)
        each = msgspec.structs.replace(name, rank=rank)
        vault.on_notice(BackedUp(name=each, sealed=sealed, keeper="b", nbytes=1, took_s=0.1))

    present = BackupOrder(
        node="a",
        job="job-1",
        submitted_ms=submission_ms(START),
        world_size=4,
        generation=2,
        node_rank=0,
        nproc_per_node=2,
        cause=uuid7(),
    )
    placed = order(2).placement
    assert placed is not None
    placement = msgspec.structs.replace(placed, submitted_at=START)
    backups.placed(msgspec.structs.replace(order(2), placement=placement))
    await backups.follow(signed_orders(present))
    refuse(5)
    assert said == [], "nothing is copied: there is no step to keep"
    for rank, step in ((0, 5), (1, 5), (0, 6)):
        copied(rank, step)
    refuse(7)
    refuse(8)
    vault.on_lost()
    (event,) = said
    assert isinstance(event, KeepingInterrupted)
    assert (event.job, event.node, event.generation, event.step, event.not_kept) == ("job-1", "a", 2, 5, 7)
    await backups.follow(signed_orders(msgspec.structs.replace(present, number=1, frozen_step=5, frozen_generation=2)))
    vault.on_lost()
    assert said == [event]
    await backups.follow(signed_orders(msgspec.structs.replace(present, number=2)))
    copied(1, 6)
    vault.on_lost()
    _, lost = said
    assert isinstance(lost, KeepingInterrupted) and (lost.step, lost.not_kept) == (6, None)


def test_every_report_is_a_metric_and_a_keeper_that_has_the_first_whole_step_an_action(tmp_path: Path) -> None:
    said: list[Event] = []
    vault = VaultLink(tmp_path, "127.0.0.1", 1.0, None)
    backups = Backups("a", vault, said.append, lambda: datetime(2026, 1, 1, tzinfo=UTC))
    order = BackupOrder(
        node="a", job="job", submitted_ms=1, world_size=2, generation=2, node_rank=1, nproc_per_node=1, reason="test"
    )
    tally = BackupTally(order)
    for generation, step, keeper in ((1, 7, "b"), (2, 5, "b"), (2, 6, "b"), (2, 7, "b"), (2, 8, "c"), (2, 9, "c")):
        sealed = SealedStep(generation=generation, step=step)
        backups._copied(
            tally, BackupSum(sealed=sealed, keeper=keeper, nbytes=10, nbytes_shared=0, took_s=0.1, skipped=0)
        )
    measured = [event for event in said if isinstance(event, CopiesMeasured)]
    assert [event.step for event in measured] == [7, 5, 6, 7, 8, 9]
    actions = [event for event in said if isinstance(event, ShardsBackedUp)]
    assert [(event.generation, event.step, event.keeper) for event in actions] == [
        (1, 7, "b"),
        (2, 5, "b"),
        (2, 8, "c"),
    ]


async def signed_orders(*orders: BackupOrder) -> AsyncIterator[SignedOrder[BackupOrder]]:
    for each in orders:
        yield SignedOrder(each, START)


async def test_an_old_backup_order_that_is_brought_back_replaces_none(tmp_path: Path) -> None:
    vault = VaultLink(tmp_path, "127.0.0.1", 1.0, None)
    backups = Backups("a", vault, lambda *_: None, lambda: START)
    placed = order(3).placement
    assert placed is not None
    placement = msgspec.structs.replace(placed, submitted_at=START)
    backups.placed(msgspec.structs.replace(order(3), placement=placement))
    present = BackupOrder(
        node="a",
        job="job-1",
        submitted_ms=submission_ms(START),
        world_size=2,
        generation=3,
        number=4,
        node_rank=0,
        nproc_per_node=2,
    )
    earlier = msgspec.structs.replace(present, number=3)
    before = msgspec.structs.replace(present, generation=2, number=9)
    namesake = msgspec.structs.replace(present, submitted_ms=1, generation=99)
    await backups.follow(signed_orders(present, earlier, before, namesake))
    assert backups._order == present
    changed = msgspec.structs.replace(present, number=5)
    await backups.follow(signed_orders(changed))
    assert backups._order == changed

    # The next job's order may come before its placement.
    other = msgspec.structs.replace(present, job="job-2", number=0)
    await backups.follow(signed_orders(other))
    assert backups._order == changed
    spec = msgspec.structs.replace(placement.job, name="job-2")
    placement = msgspec.structs.replace(placement, job=spec)
    backups.placed(msgspec.structs.replace(order(1, epoch=2), placement=placement))
    assert backups._order == other
