"""The store in memory, and the relay on it: what a commit of unknown fate leaves behind."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from holdfast.bus import Message
from holdfast.bus.in_memory import MemoryBroker
from holdfast.daemon.relay import Relay
from holdfast.store import StoreUnavailable, Table
from holdfast.store.in_memory import MemoryDatabase, MemoryStore


class Row(msgspec.Struct, frozen=True):
    value: int


def _columns(row: Row) -> dict[str, Any]:
    return {}


ROWS = Table(name="rows", row_type=Row, columns=_columns)


async def handle(store: MemoryStore, value: int) -> bool:
    async with store.transaction() as tx:
        if not await tx.first_time("m1", "s"):
            return False
        await tx.save(ROWS, "k", Row(value))
        await tx.emit([Message(id="said", subject="holdfast.v1.decision.eviction.job._", body=b"")])
    return True


async def test_a_commit_of_unknown_fate_is_told_by_the_inbox() -> None:
    store = MemoryStore()
    store.lose_next_commit = True
    with pytest.raises(StoreUnavailable):
        await handle(store, 1)
    assert not await handle(store, 1)
    async with store.transaction() as tx:
        assert await tx.load(ROWS, "k") == Row(1)


async def test_a_database_outlives_the_store_on_it() -> None:
    database = MemoryDatabase()
    assert await handle(MemoryStore(database), 1)
    assert not await handle(MemoryStore(database), 1)


async def test_the_relay_waits_for_bus_and_store() -> None:
    broker, store = MemoryBroker(), MemoryStore()
    bus = broker.client("a")
    bus.disconnect()
    await handle(store, 1)
    relay = Relay(store, bus)
    task = asyncio.create_task(relay.run())
    await asyncio.sleep(0)
    store.available = False
    bus.reconnect()
    await asyncio.wait([task], timeout=0.06)
    store.available = True
    async with asyncio.timeout(30):
        while await store.pending(1):  # noqa: ASYNC110 - the outbox offers no event
            await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert [item.id for item in broker.streams["DECISIONS"].messages] == ["said"]
