"""A service that notes what it acts on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from bus_worlds import WITHIN_S

from holdfast.bus import Bus
from holdfast.daemon.service_shell import Decider, ServiceShell
from holdfast.effects import Effect
from holdfast.events import AnyEvent, BusWentBack, Eviction, MessageRejected
from holdfast.fresh_ids import uuid7
from holdfast.store import Store


class Recorder(Decider):
    """Acts on every eviction, and on every message that an agent rejects."""

    name = "recorder"
    handles = (Eviction, MessageRejected)

    def __init__(self) -> None:
        self.acted: list[str] = []

    def on_event(self, event: AnyEvent, now: datetime) -> Effect:
        return Effect(events=(BusWentBack(id=uuid7(), at=now, source=str(event.node), stream="S", sequence=1),))

    def adopt(self, effect: Effect) -> None:
        self.acted += [event.source for event in effect.events]


def eviction(node: str) -> Eviction:
    return Eviction(
        id=uuid7(), at=datetime.now(UTC), source="controller", job="j", node=node, reason="r", blocked_for_s=1.0
    )


@asynccontextmanager
async def running(bus: Bus, store: Store) -> AsyncIterator[Recorder]:
    recorder = Recorder()
    shell = ServiceShell(recorder, bus, store)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(shell.run())
        yield recorder
        task.cancel()


async def until_acted(recorder: Recorder, node: str) -> None:
    async with asyncio.timeout(WITHIN_S):
        while node not in recorder.acted:  # noqa: ASYNC110 - the recorder sends no event
            await asyncio.sleep(0.01)
