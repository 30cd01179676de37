"""What an agent reads in the name of its node may be anything that a client with the node's password sends."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from holdfast.bus.in_memory import MemoryBroker
from holdfast.events.parts.job import AgentPlace
from holdfast.subjects import heartbeat_subject, holder_subject
from holdfast_agent.node_hold import Holding, NodeHeldElsewhere, NodeHold

NOW = datetime(2026, 11, 29, tzinfo=UTC)
PLACE = AgentPlace(hostname="h", pid=1, state_dir="/state")
OWN = Holding(instance="own", since=NOW, place=PLACE)
EARLIER = Holding(instance="earlier", since=NOW - timedelta(hours=1), place=PLACE)
NESTED = b'{"more": ' + b"[" * 100_000
HOSTILE = (NESTED, b'{"\xff\xfe": 1}', b"[]", b"")


def hold() -> NodeHold:
    return NodeHold("n1", lambda: OWN, lambda: None, lambda: NOW)


async def test_no_heartbeat_ends_an_agent_but_that_of_the_holder() -> None:
    broker = MemoryBroker()
    watching = asyncio.create_task(hold().watch(broker.client("agent")))
    async with asyncio.timeout(30):
        while not broker.listeners:  # noqa: ASYNC110
            await asyncio.sleep(0)
        for body in (*HOSTILE, msgspec.json.encode(EARLIER)):
            await broker.client("other").broadcast(heartbeat_subject("n1"), body)
        with pytest.raises(NodeHeldElsewhere):
            await watching


@pytest.mark.parametrize("body", HOSTILE)
async def test_an_unreadable_answer_is_that_of_no_holder(body: bytes) -> None:
    broker = MemoryBroker()

    async def answer(_: bytes) -> bytes:
        return body

    serving = asyncio.create_task(broker.client("other").serve(holder_subject("n1"), answer))
    async with asyncio.timeout(30):
        while not broker.servers:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await hold().take(broker.client("agent"))
    serving.cancel()
