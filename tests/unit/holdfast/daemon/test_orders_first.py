"""Orders are on the bus before the next decision, which would hold the processor that brings them there."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import UTC, datetime

from holdfast.bus import event_message
from holdfast.bus.in_memory import MemoryBroker
from holdfast.daemon.service_shell import Decider, ServiceShell
from holdfast.effects import Effect
from holdfast.events import AnyEvent, NodeDeparted
from holdfast.fresh_ids import uuid7
from holdfast.orders.node import NodeOrder
from holdfast.store.in_memory import MemoryStore
from holdfast.subjects import DESIRED_BUCKET
from tests.scenes.order_keys import SIGNER

NODES = ("a", "b", "c")


class Ordering(Decider):
    """Orders something of each node that departs, and notes how many orders were on the bus when it decided."""

    name = "controller"
    handles = (NodeDeparted,)

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker
        self.stored: list[int] = []
        self.all_decided = asyncio.Event()

    def on_event(self, event: AnyEvent, now: datetime) -> Effect:
        self.stored.append(len(self._broker.buckets[DESIRED_BUCKET]))
        if len(self.stored) == len(NODES):
            self.all_decided.set()
        assert event.node is not None
        return Effect(orders=(NodeOrder(node=event.node, epoch=1, generation=0),))


async def test_each_order_has_left_before_the_next_decision() -> None:
    broker = MemoryBroker()
    bus, decider = broker.client("controller"), Ordering(broker)
    shell = ServiceShell(decider, bus, MemoryStore(), signer=SIGNER["controller"])
    for node in NODES:
        departed = NodeDeparted(id=uuid7(), at=datetime.now(UTC), source="test", node=node, instance=uuid7())
        await bus.publish(event_message(departed))
    serving = asyncio.create_task(shell.run())
    async with asyncio.timeout(20):
        await decider.all_decided.wait()
    serving.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await serving
    assert decider.stored == [0, 1, 2]
