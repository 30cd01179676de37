"""A node's part in looking at a slow job: what others tell it wrongly, or late, ends neither its agent nor training."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.bus.in_memory import MemoryBroker, MemoryBus
from holdfast.clock import system_now
from holdfast.events import CollectivesProfiled, Event, SlownessTested
from holdfast.events.parts.job import Endpoint
from holdfast.fresh_ids import uuid7
from holdfast.orders.base import UnreadableOrder
from holdfast.orders.slow import SlowOrder, SlowTests
from holdfast.subjects import JOBS_BUCKET
from holdfast.trainer.hooks.ring_writer import RingWriter
from holdfast_agent.files.directories import Directories
from holdfast_agent.order_watch import OrderReader
from holdfast_agent.plan.node_state import Crew
from holdfast_agent.slow_tests.probing import Probing
from holdfast_agent.slow_tests.transfers import TransferServer
from tests.scenes.agent import order
from tests.scenes.order_keys import KEYS, signed

SOON_S = 5.0


class Node:
    """One that runs rank 0 of a job, in generation 1."""

    def __init__(self, folder: Path, address: str = "127.0.0.1") -> None:
        self.bus: MemoryBus = MemoryBroker().client("agent")
        self.directories = Directories(folder)
        self.crew: Crew | None = Crew(order=order(1), forked=True, pids={0: 1})
        self.said: list[Event] = []
        self.told = asyncio.Event()
        self.ring = self._ring(1)
        self.questions = 0
        self.probing = Probing(
            "n", address, self.directories, lambda: self.crew, self._say, system_now, on_question=self._note_question
        )

    def _note_question(self) -> None:
        self.questions += 1

    def _say(self, event: Event) -> None:
        self.said.append(event)
        self.told.set()

    def _ring(self, generation: int) -> RingWriter:
        ledger = self.directories.ledger("job-1", (1, generation), 0)
        ledger.parent.mkdir(parents=True)
        return RingWriter(ledger.with_suffix(".collectives"), rank=0, generation=generation)

    def restarted(self) -> RingWriter:
        self.crew = Crew(order=order(2), forked=True, pids={0: 2})
        return self._ring(2)

    def orders(self) -> AsyncIterator[tuple[SlowOrder, Crew]]:
        reader = OrderReader("n", KEYS, lambda *_: None)
        return reader.for_crew(self.bus, SlowOrder, lambda: self.crew, system_now)

    async def asked(self, **about: Any) -> SlowOrder:
        about = {"id": uuid7(), "generation": 1, "until": system_now() + timedelta(seconds=30)} | about
        wanted = SlowOrder(job="job-1", **about)
        await self.bus.put(JOBS_BUCKET, SlowOrder.key_of("job-1"), signed(wanted))
        return wanted

    async def until(self, kind: type[Event]) -> Any:
        async with asyncio.timeout(SOON_S):
            while not (found := [event for event in self.said if isinstance(event, kind)]):
                self.told.clear()
                await self.told.wait()
        return found[-1]


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    one = Node(tmp_path)
    async with serving(one):
        yield one


@contextlib.asynccontextmanager
async def serving(node: Node) -> AsyncIterator[None]:
    task = asyncio.create_task(node.probing.follow(node.orders()))
    try:
        yield
        assert not task.done(), "it goes on"
    finally:
        task.cancel()
        await asyncio.wait([task])


def held(**about: Any) -> SlowTests:
    now = system_now()
    return SlowTests(after_step=0, held_by=now, until=now + timedelta(seconds=30), **about)


@pytest.mark.parametrize("address", ["a..b", "no\0address", "", "x" * 300])
async def test_an_endpoint_that_is_none_costs_one_transfer(node: Node, address: str) -> None:
    endpoints = {1: Endpoint(address=address, port=1)}
    await node.asked(tests=held(passes=(((0, 1),),), passes_at=system_now(), pass_s=0.2, endpoints=endpoints))
    told = await node.until(SlownessTested)
    assert not told.transfers and any("a transfer to node 1 failed" in line for line in told.unread)
    assert told.held_s == 0.0, "nobody has stood"
    assert node.questions == 1, "the node looks for a reason to be slow"


@pytest.mark.parametrize("address", ["192.0.2.1", "a..b"])
async def test_a_node_that_has_lost_its_address_tells_how_its_ranks_spend_their_time_all_the_same(
    tmp_path: Path, address: str
) -> None:
    node = Node(tmp_path, address)
    async with serving(node):
        await node.asked()
        assert (await node.until(CollectivesProfiled)).endpoint is None


async def test_transfers_are_taken_no_longer_than_somebody_may_ask_for_them() -> None:
    server = TransferServer("127.0.0.1")
    port = await server.port()
    server.keep_open(60.0)
    server.keep_open(0.01)
    async with asyncio.timeout(SOON_S):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except ConnectionRefusedError:
                break
            writer.close()
            await asyncio.sleep(0.005)
    assert await server.port() > 0, "asked again, it listens again"
    server.close()


async def test_the_port_of_a_profile_closes_though_nobody_says_that_it_is_over(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[float] = []
    monkeypatch.setattr(TransferServer, "keep_open", lambda _, duration_s: kept.append(duration_s))
    await node.asked()
    await node.until(CollectivesProfiled)
    assert len(kept) == 1 and 30.0 < kept[0] < 120.0


async def test_what_a_generation_before_was_held_for_holds_nobody_of_this_one(node: Node) -> None:
    await node.asked(tests=held())
    await node.until(SlownessTested)
    assert node.ring.hold_wanted
    node.said.clear()
    ring = node.restarted()
    # The word that came before this stage was missed.
    await node.asked(generation=2, tests=held(passes=((),), passes_at=system_now(), pass_s=0.0))
    await node.until(SlownessTested)
    assert not node.ring.hold_wanted and ring.hold_wanted


async def test_a_hold_for_centuries_can_be_asked_for_and_ends_sooner(node: Node) -> None:
    far = system_now().replace(year=9000)
    await node.asked(until=far, tests=msgspec.structs.replace(held(), until=far))
    assert not (await node.until(SlownessTested)).unread
    assert node.ring.hold_wanted


def test_tests_that_nobody_could_carry_out_are_no_order() -> None:
    for field, value in (("compute_s", 1e300), ("pass_s", -1.0), ("transfer_bytes", 1 << 50)):
        wanted = SlowOrder(id=uuid7(), job="j", generation=1, until=system_now(), tests=held(**{field: value}))
        with pytest.raises(UnreadableOrder):
            SlowOrder.decode(msgspec.json.encode(wanted))
