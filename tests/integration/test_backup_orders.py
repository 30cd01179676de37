"""The coordinator on a real bus and a real database: orders come and hold, and SQL tells which steps are in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from datetime import timedelta

import pytest

from holdfast.bus import KeyUpdate, event_message
from holdfast.bus.nats import NatsBus, connect
from holdfast.clock import system_now
from holdfast.daemon.orders.order_repair import keep_orders
from holdfast.daemon.service_shell import ServiceShell
from holdfast.events import CopiesMeasured, Event, GenerationStarted, JobFinished, StepsCertified
from holdfast.fresh_ids import uuid7
from holdfast.orders.backup import BackupOrder
from holdfast.store.postgres import PostgresStore
from holdfast.subjects import DESIRED_BUCKET
from holdfast_ckpt.backup_order_repair import corrections
from holdfast_ckpt.service import Coordinator
from tests.integration.historian_scene import new_database, query, until
from tests.integration.servers import NatsServer
from tests.scenes.order_keys import SIGNER, signed

pytestmark = pytest.mark.integration

NODES = ("a", "b", "c", "d")
NOW = system_now()
WITHIN_S = 20.0


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.daemon.orders.order_repair.EVERY_S", 0.05)


@asynccontextmanager
async def coordinator(server: NatsServer, urls: dict[str, str]) -> AsyncIterator[None]:
    """One life of the service, as its process wires it."""
    bus = await connect(server.url, "ckpt-coordinator")
    store = await PostgresStore.connect(urls["ckpt"], "ckpt", application_name="test")
    decider = Coordinator()

    async def serve() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(ServiceShell(decider, bus, store, signer=SIGNER["ckpt"]).run())
            group.create_task(
                keep_orders(bus, lambda: corrections(decider.orders_in_force(), SIGNER["ckpt"], system_now))
            )

    task = asyncio.create_task(serve())
    try:
        yield
    finally:
        assert not task.done() or task.exception() is None
        task.cancel()
        await asyncio.wait([task])
        await bus.close()
        await store.close()


def started(generation: int, nodes: tuple[str, ...] = NODES) -> GenerationStarted:
    return GenerationStarted(
        id=uuid7(),
        at=NOW + timedelta(seconds=generation),
        source="controller",
        job="job",
        generation=generation,
        reason="test",
        nodes=nodes,
        world_size=4,
        nproc_per_node=1,
        mesh="pp=2,dp=2",
        submitted_at=NOW,
        vaults=tuple(f"{node}.local:7000" for node in nodes),
    )


def backed_up(node: str, rank: int, step: int, generation: int = 1) -> CopiesMeasured:
    return CopiesMeasured(
        id=uuid7(),
        at=NOW + timedelta(seconds=step),
        source=f"agent/{node}",
        job="job",
        generation=generation,
        node=node,
        step=step,
        ranks=(rank,),
        keeper="d",
        backup_bytes=1000,
        took_s=0.01,
    )


async def say(bus: NatsBus, *events: Event) -> None:
    await bus.publish_all([event_message(event) for event in events])


async def order_of(bus: NatsBus, node: str, generation: int) -> BackupOrder:
    """The order that comes to hold for a node."""

    def is_it(update: KeyUpdate) -> bool:
        return update.body is not None and BackupOrder.decode(update.body).generation == generation

    async with asyncio.timeout(WITHIN_S), aclosing(bus.watch(DESIRED_BUCKET, BackupOrder.key_of(node))) as updates:
        update = await anext(update async for update in updates if is_it(update))
    assert update.body is not None
    return BackupOrder.decode(update.body)


async def test_orders_reach_every_node_and_hold(nats: NatsServer, embedded_postgres: str) -> None:
    urls = await new_database(embedded_postgres, "backup_orders")
    bus = await connect(nats.url, "test")

    async def right(node: str, order: BackupOrder) -> bool:
        body = await bus.get(DESIRED_BUCKET, order.key)
        return body is not None and SIGNER["ckpt"].own(BackupOrder, order.key, body) == order

    async with coordinator(nats, urls):
        await say(bus, started(1))
        given = {node: await order_of(bus, node, 1) for node in NODES}
        assert [given[node].node_rank for node in NODES] == [0, 1, 2, 3]
        assert {node: order.keeper.node for node, order in given.items() if order.keeper} == {
            "a": "d",
            "b": "c",
            "c": "b",
            "d": "a",
        }
        # The order of a release without signatures is signed after its end.
        for foreign in (b"\xff", given["b"].encode(), signed(given["b"]), b"{}", given["a"].encode()):
            await bus.put(DESIRED_BUCKET, BackupOrder.key_of("a"), foreign)
            await until(lambda: right("a", given["a"]), "the order is put right")
    # Also what was changed while nobody looked, and by what is in the database alone.
    await bus.put(DESIRED_BUCKET, BackupOrder.key_of("a"), b"changed meanwhile")
    async with coordinator(nats, urls):
        await until(lambda: right("a", given["a"]), "the order is put right after a start")
        await say(bus, started(2, ("a", "e", "c", "d")))
        replaced = await order_of(bus, "e", 2)
        assert [source.node for source in replaced.sources] == ["c", "b"]
        assert (await order_of(bus, "b", 1)).keeper, "who left is still to answer for what it holds"
        finished = JobFinished(
            id=uuid7(), at=NOW, source="controller", job="job", outcome="completed", exit_code=0, reason="test"
        )
        await say(bus, finished)

        async def are_idle() -> bool:
            return all([(await order_of(bus, node, 2)).keeper is None for node in (*NODES, "e")])

        await until(are_idle, "no node of a job that is over has anything to send")
        assert not await query(urls["reader"], "select * from ckpt.plans")
    await bus.close()


async def test_sql_tells_which_steps_are_in_memory(nats: NatsServer, embedded_postgres: str) -> None:
    urls = await new_database(embedded_postgres, "backup_catalogue")
    bus = await connect(nats.url, "test")

    async def restorable() -> list[tuple[object, ...]]:
        rows = await query(urls["reader"], "select job, tier, step, generation from ckpt.restorable")
        return [tuple(row) for row in rows]

    async def shards(step: int) -> bool:
        found = await query(urls["reader"], "select node, keeper, bytes, state from ckpt.shards where step = $1", step)
        return [tuple(row) for row in found] == [("c", "d", 1000, "backed_up")]

    async def is_now(*wanted: tuple[object, ...]) -> bool:
        return await restorable() == list(wanted)

    async def are_certified(*wanted: int) -> bool:
        found = await query(urls["reader"], "select step from ckpt.restorable where certified")
        return [row["step"] for row in found] == list(wanted)

    async with coordinator(nats, urls):
        # Reports come by another stream: of what is not planned yet they say nothing, and are repeated.
        await say(bus, started(1))
        await order_of(bus, "a", 1)
        await say(bus, *(backed_up(node, rank, 10) for rank, node in enumerate(NODES[:3])))
        await until(lambda: shards_are(urls, 3), "three nodes have reported")
        assert await restorable() == []
        await say(bus, backed_up("d", 3, 9), backed_up("c", 2, 12))
        await until(lambda: is_now(("job", "memory", 9, 1)), "what all have counts")
        # Each report is a transaction of its own.
        await until(lambda: shards(12), "the newer one is known too")
        await say(bus, started(2, ("e", "b", "c", "f")))
        await until(lambda: is_now(), "what only nodes have that the job does without is not offered")
        # The next generation went back to step 5: until all are past it, nothing is known of it.
        await say(bus, started(3))
        await order_of(bus, "a", 3)
        await say(bus, backed_up("a", 0, 6, generation=3))
        await until(lambda: is_now(), "two generations are not one checkpoint")
        await say(bus, *(backed_up(node, rank, 6, generation=3) for rank, node in enumerate(NODES)))
        await until(lambda: is_now(("job", "memory", 6, 3)), "the new generation's steps count")
        assert await are_certified()
        common = {"at": NOW, "source": "analyzer", "job": "job", "generation": 2}
        await say(bus, StepsCertified(id=uuid7(), step=5, newest_step=15, **common))
        await say(bus, StepsCertified(id=uuid7(), step=6, newest_step=16, **common))
        await until(lambda: are_certified(6), "what is certified is told")
        finished = JobFinished(
            id=uuid7(), at=NOW, source="controller", job="job", outcome="failed", exit_code=1, reason="test"
        )
        await say(bus, finished)
        await until(lambda: shards_are(urls, 0), "nothing is left of a job that is over")
    await bus.close()


async def shards_are(urls: dict[str, str], count: int) -> bool:
    (row,) = await query(urls["reader"], "select count(*) from ckpt.shards")
    return bool(row[0] == count)
