"""A durable consumer's position: it can be read, and given up; on the bus in memory and on a real NATS."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest
from bus_worlds import WITHIN_S, MemoryWorld, NatsWorld, World, message, settle, take, unique
from servers import NatsServer

pytestmark = pytest.mark.integration


@pytest.fixture(params=["memory", "nats"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    server = NatsServer(tmp_path)
    if request.param == "nats":
        await server.start()
    world: World = NatsWorld(server) if request.param == "nats" else MemoryWorld()
    yield world
    await world.leave()
    if request.param == "nats":
        server.stop()


async def test_a_consumer_starts_over(world: World) -> None:
    bus, consumer = await world.client("a"), unique("c")
    subject = "holdfast.v1.evidence.process_exited.job.node-1"
    sent = [message(subject, b"%d" % number) for number in range(5)]
    await bus.publish_all(sent)
    assert await bus.last_settled("EVIDENCE", consumer) is None, "there is no such consumer"
    await bus.start_over("EVIDENCE", consumer)
    async with aclosing(bus.consume("EVIDENCE", consumer, [subject])) as deliveries:
        first = await take(deliveries, 5)
        for delivery in (first[0], first[1], first[4]):
            await delivery.ack()
        async with asyncio.timeout(WITHIN_S):
            while (settled := await bus.last_settled("EVIDENCE", consumer)) is None or settled.id != sent[1].id:
                assert settled is None or settled.id == sent[0].id, "the third is not settled"
        assert (settled.subject, settled.body) == (subject, b"1")
        await settle(first[2:4])
    await bus.start_over("EVIDENCE", consumer)
    async with aclosing(bus.consume("EVIDENCE", consumer, [subject])) as deliveries:
        assert [delivery.body for delivery in await take(deliveries, 5)] == [item.body for item in sent]
