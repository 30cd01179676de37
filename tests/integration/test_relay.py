"""From the outbox to the bus, with real servers that are killed on the way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager

import pytest
from bus_worlds import WITHIN_S, take, take_one, unique
from servers import NatsServer, PostgresServer

from holdfast.bus import Message, StreamPosition
from holdfast.bus.nats import NatsBus
from holdfast.daemon.relay import Relay
from holdfast.fresh_ids import uuid7
from holdfast.store import Outbox, Published, Store
from holdfast.subjects import DEAD_LETTER_STREAM, DESIRED_BUCKET, dead_letter_subject, kv_subject

pytestmark = pytest.mark.integration


@asynccontextmanager
async def running(relay: Relay) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(relay.run())
        yield
        task.cancel()


def decision(job: str, body: bytes) -> Message:
    return Message(id=uuid7(), subject=f"holdfast.v1.decision.eviction.{job}._", body=body)


async def say(store: Store, *messages: Message) -> None:
    async with store.transaction() as tx:
        await tx.emit(list(messages))


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not condition():  # noqa: ASYNC110 - a condition of the bus, which offers no event
            await asyncio.sleep(0.01)


async def until_noted(store: Store) -> None:
    """Wait until the relay has noted what it published: who takes it from the bus may be quicker."""
    async with asyncio.timeout(WITHIN_S):
        while await store.pending(1):  # noqa: ASYNC110 - the outbox offers no event
            await asyncio.sleep(0.01)


class ForgetfulOutbox:
    """An outbox whose owner crashes between publishing and noting it, the first time."""

    def __init__(self, outbox: Outbox) -> None:
        self.outbox = outbox
        self.crashed = False

    async def pending(self, limit: int) -> list[tuple[int, Message]]:
        return await self.outbox.pending(limit)

    async def published(self, stored: Mapping[int, StreamPosition | None]) -> None:
        if not self.crashed:
            self.crashed = True
            raise ZeroDivisionError("crash")
        await self.outbox.published(stored)

    async def newest_published(self) -> list[Published]:
        return await self.outbox.newest_published()

    async def published_in(self, stream: str) -> list[Published]:
        return await self.outbox.published_in(stream)

    async def publish_again(self, first: StreamPosition) -> int:
        return await self.outbox.publish_again(first)


async def test_everything_said_is_published_in_order(
    store: Store, bus: NatsBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Who waits for the next look waits longer than the test.
    monkeypatch.setattr("holdfast.daemon.relay.POLL_S", 3600.0)
    job, key = unique("job"), unique("node")
    said = [decision(job, b"%d" % number) for number in range(1203)]
    order = Message(id=uuid7(), subject=kv_subject(DESIRED_BUCKET, key), body=b"run")
    await say(store, *said[:1200], order)
    relay = Relay(store, bus)
    async with running(relay), aclosing(bus.consume("DECISIONS", unique("c"), [said[0].subject])) as deliveries:
        for item in said[:1200]:
            delivery = await take_one(deliveries)
            assert delivery.body == item.body
            await delivery.ack()
        await say(store, *said[1200:])
        relay.wake()
        assert [delivery.body for delivery in await take(deliveries, 3)] == [item.body for item in said[1200:]]
        assert await bus.get(DESIRED_BUCKET, key) == b"run"
        await until_noted(store)
    assert await relay.publish_pending() == 0


async def test_what_the_server_never_takes_holds_up_nothing(store: Store, bus: NatsBus) -> None:
    job, key = unique("job"), unique("node")
    too_large = decision(job, b"x" * (bus.message_bytes_max - 60))
    order = Message(id=uuid7(), subject=kv_subject(DESIRED_BUCKET, key), body=b"y" * (bus.message_bytes_max + 1))
    await say(store, decision(job, b"1"), too_large, order, decision(job, b"2"))
    async with (
        running(Relay(store, bus)),
        aclosing(bus.consume("DECISIONS", unique("c"), [too_large.subject])) as deliveries,
        aclosing(bus.consume(DEAD_LETTER_STREAM, unique("c"), [dead_letter_subject("relay")])) as letters,
    ):
        assert [delivery.body for delivery in await take(deliveries, 2)] == [b"1", b"2"]
        assert [letter.headers["Holdfast-Subject"] for letter in await take(letters, 2)] == [
            too_large.subject,
            order.subject,
        ]
        await until_noted(store)


async def test_a_crash_between_publishing_and_noting_publishes_once(store: Store, bus: NatsBus) -> None:
    job = unique("job")
    said = [decision(job, b"%d" % number) for number in range(3)]
    await say(store, *said)
    outbox = ForgetfulOutbox(store)
    with pytest.raises(ZeroDivisionError):
        await Relay(outbox, bus).run()
    last = decision(job, b"last")
    await say(store, last)
    async with (
        running(Relay(outbox, bus)),
        aclosing(bus.consume("DECISIONS", unique("c"), [last.subject])) as deliveries,
    ):
        assert [delivery.body for delivery in await take(deliveries, 4)] == [b"0", b"1", b"2", b"last"]


async def test_the_relay_outlives_both_servers(
    store: Store, bus: NatsBus, postgres: PostgresServer, nats: NatsServer
) -> None:
    job, relay = unique("job"), Relay(store, bus)
    async with running(relay):
        nats.kill()
        await say(store, decision(job, b"1"))
        relay.wake()
        await until(lambda: bus.connected_since is None)
        await nats.start()
        subject = decision(job, b"").subject
        async with aclosing(bus.consume("DECISIONS", unique("c"), [subject])) as deliveries:
            first = await take_one(deliveries)
            assert first.body == b"1"
            await first.ack()
            postgres.kill()
            relay.wake()
            await postgres.start()
            await say(store, decision(job, b"2"))
            bodies = [first.body]
            while bodies[-1] != b"2":  # a killed nats-server may have forgotten an acknowledgement
                bodies.append((await take_one(deliveries)).body)


async def test_what_nobody_woke_the_relay_for_is_published_too(
    store: Store, bus: NatsBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.daemon.relay.POLL_S", 0.5)
    job = unique("job")
    async with (
        running(Relay(store, bus)),
        aclosing(bus.consume("DECISIONS", unique("c"), [decision(job, b"").subject])) as deliveries,
    ):
        arriving = asyncio.ensure_future(take_one(deliveries))
        await say(store, decision(job, b"1"))
        assert (await arriving).body == b"1"
