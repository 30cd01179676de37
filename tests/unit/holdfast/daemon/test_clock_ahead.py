"""A service whose machine's clock was a year ahead for a while acts on what comes after."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import cast

import pytest

from holdfast.bus import Bus, event_message
from holdfast.bus.in_memory import MemoryBroker
from holdfast.daemon.liveness import BusLiveness
from holdfast.daemon.service_shell import Decider, ServiceShell
from holdfast.effects import Effect
from holdfast.events import AnyEvent, NodeDeparted
from holdfast.fresh_ids import uuid7
from holdfast.orders.node import NodeOrder
from holdfast.store.in_memory import MemoryStore
from tests.scenes.order_keys import SIGNER
from tests.sim.network import SimDelivery

TODAY, AHEAD = datetime(2026, 1, 1, tzinfo=UTC), timedelta(days=365)


class Noting(Decider):
    """Notes the nodes that depart."""

    name = "controller"
    handles = (NodeDeparted,)

    def __init__(self) -> None:
        self.departed: list[str] = []

    def on_event(self, event: AnyEvent, now: datetime) -> Effect:
        assert event.node is not None
        self.departed.append(event.node)
        return Effect(orders=(NodeOrder(node=event.node, epoch=1, generation=0),))


class Scene:
    """A service and its database, each with a clock of its own."""

    def __init__(self) -> None:
        self.now = self.now_of_database = TODAY
        self.store = MemoryStore(now=lambda: self.now_of_database)
        self.decider = Noting()
        bus = MemoryBroker().client("controller")
        self.shell = ServiceShell(self.decider, bus, self.store, now=lambda: self.now, signer=SIGNER["controller"])

    async def departs(self, node: str, stored_at: datetime) -> None:
        message = event_message(NodeDeparted(id=uuid7(), at=stored_at, source="test", node=node, instance=uuid7()))
        await self.shell.handle(SimDelivery(message.subject, message.body, lambda _: None, 1, stored_at))

    async def prune(self) -> None:
        await self.store.prune(self.now)
        await self.shell.load()


@pytest.mark.parametrize("database_too", [False, True])
async def test_a_clock_that_was_a_year_ahead_makes_no_service_deaf(database_too: bool) -> None:
    scene = Scene()
    await scene.departs("before", TODAY)
    scene.now += AHEAD
    if database_too:
        scene.now_of_database += AHEAD
    await scene.prune()
    scene.now = scene.now_of_database = TODAY + timedelta(hours=1)
    await scene.departs("after", scene.now)
    await scene.departs("much earlier, and unknown", TODAY - timedelta(days=1))
    assert scene.decider.departed[:2] == ["before", "after"]
    # The next prunings count from the right clock again.
    scene.now = scene.now_of_database = TODAY + timedelta(days=20)
    await scene.prune()
    assert await scene.store.forgotten_before() == TODAY + timedelta(days=13)
    await scene.departs("long handled", TODAY + timedelta(days=12))
    await scene.departs("now", scene.now)
    assert scene.decider.departed[-1] == "now" and "long handled" not in scene.decider.departed


class Connected:
    """What `BusLiveness` reads of a bus that connected at this time."""

    def __init__(self, since: datetime) -> None:
        self.connected_since = since


@pytest.mark.parametrize("connected", [TODAY, TODAY + AHEAD], ids=["before", "meanwhile"])
def test_a_clock_that_is_put_back_lets_silence_count_from_then_on(connected: datetime) -> None:
    now = TODAY
    liveness = BusLiveness(cast(Bus, Connected(connected)), lambda: now)
    for passed in (timedelta(0), AHEAD, timedelta(seconds=1), timedelta(seconds=2)):
        now = TODAY + passed
        liveness.tick()
    assert liveness.since == TODAY + timedelta(seconds=1)
