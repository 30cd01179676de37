"""Heartbeats that show a node which the inventory does not know, or knows as it was: the node is asked to register."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import msgspec
import pytest

from holdfast.bus.in_memory import MemoryBroker
from holdfast.events.parts.job import NodeFacts
from holdfast.fresh_ids import uuid7
from holdfast.requests import REGISTER
from holdfast.subjects import heartbeat_subject, ping_subject
from holdfast_standby import heartbeats
from holdfast_standby.heartbeats import Heartbeat, Heartbeats, is_outdated
from holdfast_standby.state import Node, NodeState

NOW = datetime(2026, 1, 1, tzinfo=UTC)
EARLIER, LATER = sorted((uuid7(), uuid7()))
FACTS = NodeFacts(address="h", hostname="h", boot_id="b", store_ports=(1,), cpus=1, memory_bytes=1, version="test")


def node(instance: str = LATER, epoch: int = 3, job: str | None = None) -> Node:
    state = NodeState.ACTIVE if job else NodeState.STANDBY
    return Node(id="a", state=state, since=NOW, instance=instance, facts=FACTS, epoch=epoch, job=job)


@pytest.mark.parametrize(
    ("known", "heartbeat", "outdated"),
    [
        (node(), Heartbeat(instance=LATER, epoch=3), False),
        (node(), Heartbeat(instance=LATER, epoch=2), False),
        (node(), Heartbeat(instance=EARLIER, epoch=3), False),
        (node(), Heartbeat(), False),
        (node(job="j"), Heartbeat(instance=LATER, epoch=10**9), False),
        (node(), Heartbeat(instance=LATER, epoch=4), True),
        (node(instance=EARLIER), Heartbeat(instance=LATER, epoch=3), True),
        (None, Heartbeat(instance=EARLIER, epoch=0), True),
    ],
    ids=["same", "order on its way", "late", "unreadable", "forged order", "epoch", "agent", "unknown"],
)
def test_only_what_is_newer_than_the_inventory_shows_that_it_is_outdated(
    known: Node | None, heartbeat: Heartbeat, outdated: bool
) -> None:
    assert is_outdated(known, heartbeat) is outdated


class Cluster:
    """Agents that send heartbeats and answer pings, and the receiver of the standby service."""

    def __init__(self, *known: Node) -> None:
        self.broker = MemoryBroker()
        self.known = {one.id: one for one in known}
        self.now = NOW
        self.asked: list[tuple[str, bytes]] = []
        self.heartbeats = Heartbeats(self.broker.client("standby"), lambda: self.now, self.known.get)

    @asynccontextmanager
    async def running(self, *agents: str) -> AsyncIterator[None]:
        work = [self.heartbeats.listen(), self.heartbeats.ask(), *(self._answer(agent) for agent in agents)]
        tasks = [asyncio.create_task(part) for part in work]
        async with asyncio.timeout(30):
            while not self.broker.listeners or len(self.broker.servers) < len(agents):  # noqa: ASYNC110
                await asyncio.sleep(0)
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _answer(self, agent: str) -> None:
        async def answer(body: bytes) -> bytes:
            self.asked.append((agent, body))
            return b"ready"

        await self.broker.client(agent).serve(ping_subject(f"agent-{agent}"), answer)

    async def beat(self, agent: str, body: bytes) -> None:
        self.broker.broadcast(heartbeat_subject(agent), body)
        for _ in range(50):
            await asyncio.sleep(0)


async def test_an_unknown_node_is_asked_once_in_a_while_and_is_no_sign_of_life() -> None:
    it = Cluster()
    async with it.running("a"):
        body = msgspec.json.encode({"instance": LATER, "epoch": 1})
        for _ in range(3):
            await it.beat("a", body)
        assert it.asked == [("a", REGISTER)] and it.heartbeats.last == {}
        it.now += heartbeats.ASKED_EVERY
        await it.beat("a", body)
        assert len(it.asked) == 2


async def test_a_known_node_is_left_alone() -> None:
    it = Cluster(node())
    async with it.running("a"):
        await it.beat("a", msgspec.json.encode({"instance": LATER, "epoch": 3}))
        await it.beat("a", b"\xff")
        assert it.asked == [] and it.heartbeats.last == {"a": NOW}


async def test_invented_names_fill_no_memory_and_stop_no_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeats, "ASKED_MAX", 3)
    it = Cluster()
    async with it.running("real"):
        for name in ("x", "y", "z", "real"):
            await it.beat(name, b"{}")
        assert it.asked == [] and len(it.heartbeats._asked) == 3
        it.now += heartbeats.ASKED_EVERY
        await it.beat("real", b"{}")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5):
                while not it.asked:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        assert it.asked == [("real", REGISTER)]
