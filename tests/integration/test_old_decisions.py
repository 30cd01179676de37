"""A consumer that was deleted receives weeks of decisions again, after the inbox has forgotten them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest
from bus_worlds import WITHIN_S

from holdfast.bus import event_message
from holdfast.bus.nats import NatsBus
from holdfast.daemon.service_shell import Decider, ServiceShell
from holdfast.effects import Effect
from holdfast.events import AnyEvent, BusWentBack, Eviction
from holdfast.fresh_ids import uuid7
from holdfast.store import Store
from holdfast.store.retention import INBOX_KEPT

pytestmark = pytest.mark.integration


class Recorder(Decider):
    """Acts on every eviction."""

    name = "recorder"
    handles = (Eviction,)

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
async def running(bus: NatsBus, store: Store) -> AsyncIterator[Recorder]:
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


async def test_decisions_from_before_the_inbox_was_pruned_do_not_act_again(bus: NatsBus, store: Store) -> None:
    await bus.publish(event_message(eviction("old")))
    async with running(bus, store) as recorder:
        await until_acted(recorder, "old")
    await store.prune(datetime.now(UTC) + INBOX_KEPT)
    await bus.start_over("DECISIONS", Recorder.name)
    await bus.publish(event_message(eviction("new")))
    async with running(bus, store) as recorder:
        await until_acted(recorder, "new")
    assert recorder.acted == ["new"]
