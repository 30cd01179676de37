"""A node publishes its own events under the ids of other events: these are handled all the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial

import msgspec
import pytest
from historian_scene import query, until
from recorder_service import eviction, running, until_acted
from servers import PostgresServer
from store_worlds import PASSWORDS

from holdfast.bus import event_message
from holdfast.bus.nats import NatsBus
from holdfast.clock import system_now
from holdfast.events import MessageRejected
from holdfast.store import Store
from holdfast_historian.main import run

pytestmark = pytest.mark.integration


def under(event_id: str, node: str) -> MessageRejected:
    """Return what any node may publish at any time, under an id that is not its own."""
    return MessageRejected(
        id=event_id,
        at=datetime.now(UTC),
        source=f"agent/{node}",
        node=node,
        subject="s",
        consumer="c",
        error="e",
        body_bytes=0,
        deliveries=1,
    )


async def test_the_id_of_a_coming_decision_or_of_another_nodes_event_hides_neither(
    node: NatsBus, operator: NatsBus, store: Store
) -> None:
    decision = eviction("n3")
    theirs = under(decision.id, "n2")
    async with running(operator, store) as recorder:
        await node.publish(event_message(under(decision.id, "n1")))
        await until_acted(recorder, "n1")
        await operator.publish(event_message(theirs))
        await operator.publish(event_message(decision))
        await until_acted(recorder, "n3")
        await until_acted(recorder, "n2")
    # All of it once more: each is a repetition of itself.
    for stream in ("EVIDENCE", "DECISIONS"):
        await operator.start_over(stream, recorder.name)
    last = eviction("n4")
    await operator.publish(event_message(last))
    await operator.publish(event_message(under(last.id, "n5")))
    async with running(operator, store) as recorder:
        await until_acted(recorder, "n4")
        await until_acted(recorder, "n5")
    assert sorted(recorder.acted) == ["n4", "n5"]


@asynccontextmanager
async def recording(bus: NatsBus, postgres: PostgresServer) -> AsyncIterator[None]:
    task = asyncio.create_task(
        run(bus, postgres.url_of("holdfast_historian", PASSWORDS["holdfast_historian"]), system_now)
    )
    try:
        yield
        assert not task.done(), task.exception()
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_a_copied_id_keeps_nothing_out_of_the_record(
    node: NatsBus, operator: NatsBus, postgres: PostgresServer
) -> None:
    decision, last = eviction("n3"), eviction("n3")
    forged = msgspec.structs.replace(under(decision.id, "n1"), at=decision.at)

    async def has(*wanted: str) -> bool:
        rows = await query(postgres.url, "select type from historian.events where id = $1::uuid", decision.id)
        return sorted(row["type"] for row in rows) == sorted(wanted)

    async with recording(operator, postgres):
        await node.publish(event_message(forged))
        await until(partial(has, "message_rejected"), "the forged event is recorded first")
        await operator.publish(event_message(decision))
        await until(partial(has, "message_rejected", "eviction"), "so is the decision")
    # Each is known for what it is when the streams are received again.
    for stream in ("EVIDENCE", "DECISIONS"):
        await operator.start_over(stream, "historian")
    async with recording(operator, postgres):
        for event in (last, under(last.id, "n3")):
            await operator.publish(event_message(event))

        async def both() -> bool:
            return len(await query(postgres.url, "select from historian.events where id = $1::uuid", last.id)) == 2

        await until(both, "the last of both streams is recorded")
    assert await has("message_rejected", "eviction")
