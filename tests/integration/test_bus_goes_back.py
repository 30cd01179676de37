"""A nats-server that comes back with less than it had acknowledged: with an older directory, and with none."""

from __future__ import annotations

import asyncio
import shutil
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest
from bus_worlds import WITHIN_S, settle, take, unique, until_connected
from servers import NatsServer, PostgresServer
from store_worlds import PostgresWorld

from holdfast import events
from holdfast.bus import Delivery, Message
from holdfast.bus.nats import NatsBus
from holdfast.daemon.relay import Relay
from holdfast.events import BusWentBack
from holdfast.fresh_ids import uuid7
from holdfast.store import Outbox
from holdfast.subjects import type_filter
from holdfast_agent.files.spool import Lane, Spool

pytestmark = pytest.mark.integration

Emit = Callable[[list[Message]], Awaitable[None]]


@pytest.fixture
async def nats(tmp_path: Path) -> AsyncIterator[NatsServer]:
    server = NatsServer(tmp_path / "nats")
    await server.start()
    yield server
    server.stop()


@pytest.fixture(params=["postgres", "spool"])
async def outbox(
    request: pytest.FixtureRequest, postgres: PostgresServer, tmp_path: Path
) -> AsyncIterator[tuple[Outbox, Emit]]:
    """An outbox of a service and one of an agent, with the way to add messages."""
    if request.param == "spool":
        spool = Spool(tmp_path / "agent.db")

        async def spool_messages(messages: list[Message]) -> None:
            spool.commit(messages)

        yield spool.outbox(Lane.EVIDENCE), spool_messages
        spool.close()
        return
    world = PostgresWorld(postgres)
    await world.enter()
    store = await world.store()

    async def emit(messages: list[Message]) -> None:
        async with store.transaction() as tx:
            await tx.emit(messages)

    yield store, emit
    await world.leave()


class Directory:
    """The directory of a stopped server."""

    def __init__(self, nats: NatsServer) -> None:
        self.jetstream = nats.directory / "jetstream"
        self.copy = nats.directory / "older"

    def copy_it(self) -> None:
        shutil.copytree(self.jetstream, self.copy)

    def put_back(self) -> None:
        shutil.rmtree(self.jetstream)
        shutil.copytree(self.copy, self.jetstream)

    def wipe(self) -> None:
        shutil.rmtree(self.jetstream)

    def put_messages_back(self) -> None:
        """Put the messages back, and leave the positions of consumers, which the server writes at other times."""
        for older in self.copy.rglob("msgs"):
            newer = self.jetstream / older.relative_to(self.copy)
            shutil.rmtree(newer)
            shutil.copytree(older, newer)


def decision(job: str, body: bytes) -> Message:
    return Message(id=uuid7(), subject=f"holdfast.v1.decision.eviction.{job}._", body=body)


def numbered(job: str, first: int, last: int) -> list[Message]:
    return [decision(job, b"%d" % number) for number in range(first, last)]


def bodies(messages: list[Message]) -> list[bytes]:
    return [message.body for message in messages]


async def received_of(deliveries: AsyncIterator[Delivery], expected: list[bytes]) -> list[bytes]:
    """Receive until all that is expected came; return that in order. A killed server forgets acknowledgements, so that
    others come too, and some twice.
    """
    received: dict[bytes, None] = {}
    while len(received) < len(expected):
        (body,) = await settle(await take(deliveries, 1))
        if body in expected:
            received[body] = None
    return list(received)


@asynccontextmanager
async def running(relay: Relay) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(relay.run())
        yield
        task.cancel()


async def until_noted(outbox: Outbox) -> None:
    async with asyncio.timeout(WITHIN_S):
        while await outbox.pending(1):  # noqa: ASYNC110 - the outbox offers no event
            await asyncio.sleep(0.01)


async def restarted_with(
    nats: NatsServer, bus: NatsBus, change: Callable[[], None], by: signal.Signals = signal.SIGKILL
) -> None:
    assert nats.process is not None
    nats.process.send_signal(by)
    nats.process.wait()
    change()
    await nats.start()
    await until_connected(bus)


@pytest.mark.parametrize("state", ["older", "wiped"])
async def test_what_the_bus_lost_is_published_again_in_order(
    nats: NatsServer, bus: NatsBus, outbox: tuple[Outbox, Emit], state: str
) -> None:
    source, emit = outbox
    directory = Directory(nats)
    job, other, consumer = unique("job"), unique("other"), unique("c")
    said = numbered(job, 0, 1000)
    subject = said[0].subject
    await emit(said[:300])
    async with running(Relay(source, bus)):
        await until_noted(source)
    async with aclosing(bus.consume("DECISIONS", consumer, [subject])) as deliveries:
        assert await received_of(deliveries, bodies(said[:300])) == bodies(said[:300])
    await restarted_with(nats, bus, directory.copy_it)
    await emit(said[300:])
    async with running(Relay(source, bus)):
        await until_noted(source)
    async with aclosing(bus.consume("DECISIONS", consumer, [subject])) as deliveries:
        assert await received_of(deliveries, bodies(said[300:])) == bodies(said[300:])

    await restarted_with(nats, bus, directory.put_back if state == "older" else directory.wipe)
    # Another publisher takes the positions of the lost messages before this one looks.
    await bus.publish_all(numbered(other, 0, 1500))
    last = decision(job, b"last")
    await emit([last])
    lost = said[300:] if state == "older" else said
    async with (
        running(Relay(source, bus, source="controller")),
        aclosing(bus.consume("DECISIONS", consumer, [subject])) as deliveries,
        aclosing(bus.consume("EVIDENCE", unique("c"), [type_filter(BusWentBack)])) as reports,
    ):
        assert await received_of(deliveries, bodies([*lost, last])) == bodies([*lost, last])
        (report,) = await take(reports, 1)
        await until_noted(source)
    event = events.decode(report.body)
    assert isinstance(event, BusWentBack)
    assert (event.source, event.stream, event.sequence) == ("controller", "DECISIONS", 301 if state == "older" else 1)


async def test_a_bus_that_kept_everything_gets_nothing_again(
    nats: NatsServer, bus: NatsBus, outbox: tuple[Outbox, Emit]
) -> None:
    source, emit = outbox
    job = unique("job")
    said = numbered(job, 0, 20)
    relay = Relay(source, bus)
    await emit(said[:10])
    assert await relay.publish_pending() == 10
    await bus.publish_all(numbered(unique("other"), 0, 5))
    await restarted_with(nats, bus, lambda: None)
    await emit(said[10:])
    assert await relay.publish_pending() == 10
    assert (await bus.stream_state("DECISIONS")).messages == 25
    assert (await bus.stream_state("EVIDENCE")).messages == 0


async def test_a_consumer_beyond_the_end_of_its_stream_receives_again(nats: NatsServer, bus: NatsBus) -> None:
    directory = Directory(nats)
    job, consumer = unique("job"), unique("c")
    said = numbered(job, 0, 40)
    await bus.publish_all(said[:10])
    await restarted_with(nats, bus, directory.copy_it)
    await bus.publish_all(said[10:30])
    async with aclosing(bus.consume("DECISIONS", consumer, [said[0].subject])) as deliveries:
        assert await settle(await take(deliveries, 30)) == bodies(said[:30])
    await restarted_with(nats, bus, directory.put_messages_back, signal.SIGTERM)
    async with aclosing(bus.consume("DECISIONS", consumer, [said[0].subject])) as deliveries:
        # Fewer than it was ahead: a consumer that waits for its old position receives none of them.
        await bus.publish_all(said[30:])
        received = []
        while b"39" not in received:
            received += await settle(await take(deliveries, 1))
    assert received[-10:] == bodies(said[30:])
