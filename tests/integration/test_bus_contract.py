"""The contract of the bus, tested on the bus in memory and on a real NATS."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from functools import partial

import pytest
from bus_worlds import WITHIN_S, MemoryWorld, NatsWorld, World, message, settle, take, take_one, unique
from servers import NatsServer

from holdfast.bus import BusError, BusUnavailable, NoResponder
from holdfast.subjects import CODE_BUCKET, DESIRED_BUCKET, kv_subject, request_subject

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path_factory.mktemp("nats"))
    asyncio.run(server.start())
    yield server
    server.stop()


@pytest.fixture(params=["memory", "nats"])
def new_world(request: pytest.FixtureRequest) -> Callable[[], World]:
    if request.param == "memory":
        return MemoryWorld
    return partial(NatsWorld, request.getfixturevalue("server"))


@pytest.fixture
async def world(new_world: Callable[[], World]) -> AsyncIterator[World]:
    world = new_world()
    yield world
    await world.leave()


def evidence(job: str) -> str:
    return f"holdfast.v1.evidence.process_exited.{job}.node-1"


async def test_messages_come_in_order_from_the_beginning(world: World) -> None:
    bus, job = await world.client("a"), unique("job")
    sent = [message(evidence(job), b"%d" % number) for number in range(2000)]
    await bus.publish_all(sent)
    async with aclosing(bus.consume("EVIDENCE", unique("c"), [evidence(job)])) as deliveries:
        for item in sent:
            delivery = await take_one(deliveries)
            assert (delivery.subject, delivery.body, delivery.deliveries) == (item.subject, item.body, 1)
            assert delivery.headers["Nats-Msg-Id"] == item.id
            await delivery.ack()


async def test_unsettled_messages_are_bounded(world: World) -> None:
    bus, job = await world.client("a"), unique("job")
    await bus.publish_all([message(evidence(job), b"%d" % number) for number in range(1001)])
    async with aclosing(bus.consume("EVIDENCE", unique("c"), [evidence(job)])) as deliveries:
        held = await take(deliveries, 1000)
        beyond = asyncio.ensure_future(anext(deliveries))
        await bus.get(DESIRED_BUCKET, "nothing")
        assert not beyond.done()
        await held[0].ack()
        assert (await asyncio.wait_for(beyond, WITHIN_S)).body == b"1000"


async def test_a_repeated_publish_is_stored_once(world: World) -> None:
    bus, job = await world.client("a"), unique("job")
    first = message(evidence(job), b"1")
    for item in (first, first, message(evidence(job), b"2")):
        await bus.publish(item)
    await bus.publish_all([first, message(evidence(job), b"3")])
    async with aclosing(bus.consume("EVIDENCE", unique("c"), [evidence(job)])) as deliveries:
        assert await settle(await take(deliveries, 3)) == [b"1", b"2", b"3"]


async def test_retry_delivers_again_after_its_delay(world: World) -> None:
    bus, job = await world.client("a"), unique("job")
    await bus.publish_all([message(evidence(job), b"1"), message(evidence(job), b"2")])
    async with aclosing(bus.consume("EVIDENCE", unique("c"), [evidence(job)])) as deliveries:
        first = await take_one(deliveries)
        await first.retry(0.3)
        assert (await take_one(deliveries)).body == b"2"
        await world.pass_time(0.3)
        again = await take_one(deliveries)
        assert (again.body, again.deliveries) == (b"1", 2)
        await again.retry(0)
        assert (await take_one(deliveries)).deliveries == 3


async def test_unsettled_messages_pass_to_the_next_process_at_once(world: World) -> None:
    one, two, job, consumer = await world.client("a"), await world.client("b"), unique("job"), unique("c")
    await one.publish_all([message(evidence(job), b"%d" % number) for number in range(4)])
    async with aclosing(one.consume("EVIDENCE", consumer, [evidence(job)])) as deliveries:
        acked, dropped, *_ = await take(deliveries, 3)
        await acked.ack()
        await dropped.drop()
        await world.until_settled(consumer, 2)
    await one.close()
    async with aclosing(two.consume("EVIDENCE", consumer, [evidence(job)])) as deliveries:
        async with asyncio.timeout(20):  # below the 30 s after which an unsettled message comes by itself
            received = [await anext(deliveries) for _ in range(2)]
    assert [delivery.body for delivery in received] == [b"2", b"3"]


async def test_every_consumer_gets_every_message_of_its_filters(world: World) -> None:
    bus, job = await world.client("a"), unique("job")
    await bus.publish_all([message(evidence(f"{job}-{number % 2}"), b"%d" % number) for number in range(4)])
    for filters, expected in (
        ([evidence(f"{job}-0"), evidence(f"{job}-1")], [b"0", b"1", b"2", b"3"]),
        ([f"holdfast.v1.evidence.*.{job}-1.>"], [b"1", b"3"]),
    ):
        async with aclosing(bus.consume("EVIDENCE", unique("c"), filters)) as deliveries:
            assert await settle(await take(deliveries, len(expected))) == expected


async def test_a_consumer_takes_new_filters_and_stays_where_it_was(world: World) -> None:
    bus, job, consumer = await world.client("a"), unique("job"), unique("c")
    await bus.publish_all([message(evidence(job), b"1"), message(evidence(f"{job}-x"), b"2")])
    async with aclosing(bus.consume("EVIDENCE", consumer, [evidence(job)])) as deliveries:
        await settle([await take_one(deliveries)])
        await world.until_settled(consumer, 1)
    await bus.publish(message(evidence(f"{job}-x"), b"3"))
    async with aclosing(bus.consume("EVIDENCE", consumer, [evidence(job), evidence(f"{job}-x")])) as deliveries:
        await bus.publish(message(evidence(job), b"4"))
        bodies = []
        while b"4" not in bodies:
            bodies += await settle([await take_one(deliveries)])
    assert b"3" in bodies
    assert b"1" not in bodies


async def test_a_consumer_survives_the_server(world: World) -> None:
    bus, job = await world.client("a"), unique("job")
    await bus.publish_all([message(evidence(job), b"1"), message(evidence(job), b"2")])
    async with aclosing(bus.consume("EVIDENCE", unique("c"), [evidence(job)])) as deliveries:
        await settle([await take_one(deliveries)])
        await bus.get(DESIRED_BUCKET, "nothing")
        held = await take_one(deliveries)
        await world.stop()
        with pytest.raises(BusUnavailable):
            await bus.publish(message(evidence(job), b"lost"))
        await held.ack()  # disconnected: nothing happens
        await world.start()
        await bus.publish(message(evidence(job), b"3"))
        received = [await take_one(deliveries)]
        while received[-1].body != b"3":
            received.append(await take_one(deliveries))
        # A server that is killed may forget the newest deliveries and acknowledgements, never a message.
        assert [item.body for item in received[-2:]] == [b"2", b"3"]


async def test_disconnected_is_said_and_nothing_is_kept_for_later(world: World) -> None:
    bus, job, key = await world.client("a"), unique("job"), unique("node")
    first = bus.connected_since
    assert first is not None
    await world.stop()
    assert bus.connected_since is None
    with pytest.raises(BusUnavailable):
        await bus.publish_all([message(evidence(job), b"1")])
    with pytest.raises(BusUnavailable):
        await bus.put(DESIRED_BUCKET, key, b"1")
    with pytest.raises(BusUnavailable):
        await bus.get(DESIRED_BUCKET, key)
    with pytest.raises(BusUnavailable):
        await bus.request(request_subject("x", "y"), b"", 1)
    await bus.broadcast("holdfast.v1.heartbeat.x", b"")
    await world.start()
    assert bus.connected_since is not None
    assert bus.connected_since >= first
    assert await bus.get(DESIRED_BUCKET, key) is None
    await bus.publish(message(evidence(job), b"2"))
    async with aclosing(bus.consume("EVIDENCE", unique("c"), [evidence(job)])) as deliveries:
        assert (await take_one(deliveries)).body == b"2"


async def test_streams_in_memory_are_made_again(world: World) -> None:
    bus, job = await world.client("a"), unique("job")
    subject = f"holdfast.v1.metric.steps_measured.{job}.node-1"
    await bus.publish(message(subject, b"1"))
    async with aclosing(bus.consume("METRICS", unique("c"), [subject])) as deliveries:
        await settle([await take_one(deliveries)])
        await world.stop()
        await world.start()
        await bus.publish(message(subject, b"2"))
        assert (await take_one(deliveries)).body == b"2"


async def test_a_watch_gives_the_present_value_then_each_new_one(world: World) -> None:
    bus, other, key = await world.client("a"), await world.client("b"), unique("node")
    assert await bus.get(DESIRED_BUCKET, key) is None
    await bus.put(DESIRED_BUCKET, key, b"1")
    await bus.put(DESIRED_BUCKET, key, b"2")
    assert await other.get(DESIRED_BUCKET, key) == b"2"
    async with aclosing(other.watch(DESIRED_BUCKET, key)) as updates:
        present = await take_one(updates)
        assert (present.key, present.body) == (key, b"2")
        put = message(kv_subject(DESIRED_BUCKET, key), b"3")
        await bus.publish_all([put, put])  # as an outbox does
        await bus.put(DESIRED_BUCKET, unique("other"), b"not this one")
        # Taken before there is another: a bucket has the newest only, also for a watch that it comes late to.
        newer = await take_one(updates)
        await bus.put(DESIRED_BUCKET, key, b"4")
        newest = await take_one(updates)
        assert (newer.body, newest.body) == (b"3", b"4")
        assert present.revision < newer.revision < newest.revision


async def test_a_watch_waits_for_a_key_that_has_no_value_yet(world: World) -> None:
    bus, key = await world.client("a"), unique("node")
    async with aclosing(bus.watch(DESIRED_BUCKET, key)) as updates:
        first = asyncio.ensure_future(anext(updates))
        await bus.put(DESIRED_BUCKET, key, b"1")
        assert (await asyncio.wait_for(first, WITHIN_S)).body == b"1"


async def test_a_watch_survives_the_server_and_gives_the_newest_again(world: World) -> None:
    bus, key = await world.client("a"), unique("node")
    await bus.put(DESIRED_BUCKET, key, b"1")
    async with aclosing(bus.watch(DESIRED_BUCKET, key)) as updates:
        await take_one(updates)
        await world.stop()
        await world.start()
        assert (await take_one(updates)).body == b"1"
        await bus.put(DESIRED_BUCKET, key, b"2")
        assert (await take_one(updates)).body == b"2"


async def test_broadcasts_reach_who_listens_now(world: World) -> None:
    one, two, token = await world.client("a"), await world.client("b"), unique("x")
    subject = f"holdfast.v1.log.{token}.0"
    async with aclosing(two.listen(f"holdfast.v1.log.{token}.*")) as heard:
        await _broadcast_until_heard(one, heard, subject)
        await world.stop()
        await one.broadcast(subject, b"into the void")
        await world.start()
        await _broadcast_until_heard(one, heard, subject)


async def _broadcast_until_heard(bus: World, heard: AsyncIterator[tuple[str, bytes]], subject: str) -> None:
    first = asyncio.ensure_future(anext(heard))
    async with asyncio.timeout(WITHIN_S):
        while not first.done():
            await bus.broadcast(subject, b"here")
            await asyncio.wait([first], timeout=0.05)
    assert first.result() == (subject, b"here")


async def test_requests_are_answered_one_at_a_time(world: World) -> None:
    asking, serving, subject = await world.client("a"), await world.client("b"), request_subject(unique("x"), "echo")
    with pytest.raises(NoResponder):
        await asking.request(subject, b"", WITHIN_S)
    at_once = 0

    async def echo(body: bytes) -> bytes:
        nonlocal at_once
        at_once += 1
        assert at_once == 1
        await asyncio.sleep(0.001)
        at_once -= 1
        return body.upper()

    task = asyncio.create_task(serving.serve(subject, echo))
    await _until_served(asking, subject)
    answers = await asyncio.gather(*(asking.request(subject, b"a%d" % number, WITHIN_S) for number in range(10)))
    assert answers == [b"A%d" % number for number in range(10)]
    await world.stop()
    await world.start()
    await _until_served(asking, subject)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


async def test_an_error_of_a_handler_ends_its_service(world: World) -> None:
    asking, serving, subject = await world.client("a"), await world.client("b"), request_subject(unique("x"), "fail")

    async def fail(body: bytes) -> bytes:
        if body == b"fail":
            raise ZeroDivisionError("on purpose")
        return body

    task = asyncio.create_task(serving.serve(subject, fail))
    await _until_served(asking, subject)
    with pytest.raises(BusUnavailable):
        await asking.request(subject, b"fail", 0.2)
    with pytest.raises(ZeroDivisionError, match="on purpose"):
        await task


async def _until_served(bus: World, subject: str) -> None:
    async with asyncio.timeout(WITHIN_S):
        while True:
            try:
                await bus.request(subject, b"ping", 1)
            except BusUnavailable:
                await asyncio.sleep(0.01)
            except NoResponder:
                await asyncio.sleep(0.01)
            else:
                return


async def test_a_message_that_is_too_big_is_refused_and_harms_nothing(world: World) -> None:
    bus, job = await world.client("a"), unique("job")
    since = bus.connected_since
    with pytest.raises(BusError, match=r"limit|max_payload") as refused:
        await bus.publish(message(evidence(job), bytes(64 << 20)))
    assert not isinstance(refused.value, BusUnavailable)
    await bus.publish(message(evidence(job), b"1"))
    assert bus.connected_since == since


async def test_a_message_for_no_stream_is_not_taken_for_stored(world: World) -> None:
    bus = await world.client("a")
    with pytest.raises(BusUnavailable, match="no stream"):
        await bus.publish(message("elsewhere.x", b""))


async def test_a_delivery_is_settled_once(world: World) -> None:
    bus, job = await world.client("a"), unique("job")
    await bus.publish(message(evidence(job), b"1"))
    async with aclosing(bus.consume("EVIDENCE", unique("c"), [evidence(job)])) as deliveries:
        delivery = await take_one(deliveries)
        await delivery.ack()
        for settle_again in (delivery.ack, delivery.drop):
            with pytest.raises(RuntimeError, match="settled once"):
                await settle_again()


async def test_closing_ends_all_iterations(world: World) -> None:
    bus = await world.client("a")
    ended = [
        asyncio.create_task(_exhaust(iteration))
        for iteration in (
            bus.consume("EVIDENCE", unique("c"), [evidence("x")]),
            bus.watch(DESIRED_BUCKET, unique("node")),
            bus.listen("holdfast.v1.heartbeat.*"),
        )
    ]
    serving = asyncio.create_task(bus.serve(request_subject(unique("x"), "y"), _exhaust))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    await bus.close()
    async with asyncio.timeout(WITHIN_S):
        await asyncio.gather(*ended, serving)
    assert bus.connected_since is None
    with pytest.raises(BusUnavailable):
        await bus.publish(message(evidence("x"), b""))
    await bus.close()


async def _exhaust(iteration: AsyncIterator[object]) -> None:
    async for _ in iteration:
        pass


async def test_objects_of_any_size_are_found_by_their_names(world: World) -> None:
    bus, other, stem = await world.client("a"), await world.client("b"), unique("object")
    objects = {f"{stem}-{size}": bytes(range(256)) * (size // 256 + 1) for size in (0, 1000, 128 * 1024, 3 << 20)}
    objects[f"{stem}-empty"] = b""
    await bus.put_objects(CODE_BUCKET, objects)
    asked = [*objects, f"{stem}-never"]
    assert await other.get_objects(CODE_BUCKET, asked) == objects
    await other.put_objects(CODE_BUCKET, {f"{stem}-empty": b"no more", f"{stem}-1000": objects[f"{stem}-1000"]})
    assert await bus.get_objects(CODE_BUCKET, asked) == objects | {f"{stem}-empty": b"no more"}


async def test_objects_survive_the_server(world: World) -> None:
    bus, name = await world.client("a"), unique("object")
    await bus.put_objects(CODE_BUCKET, {name: b"x" * 300_000})
    await world.stop()
    for asked in (
        bus.put_objects(CODE_BUCKET, {name: b""}),
        bus.get_objects(CODE_BUCKET, [name]),
    ):
        with pytest.raises(BusUnavailable):
            await asked
    await world.start()
    assert await bus.get_objects(CODE_BUCKET, [name]) == {name: b"x" * 300_000}


async def test_a_stream_reports_its_size_and_its_newest_message(world: World) -> None:
    bus, job = await world.client("a"), unique("job")
    before = (await bus.stream_state("EVIDENCE")).messages
    last = message(evidence(job), b"last")
    await bus.publish_all([message(evidence(job), b"first"), last])
    state = await bus.stream_state("EVIDENCE")
    assert state.messages == before + 2 and state.newest_at is not None and state.newest is not None
    assert (state.newest.id, state.newest.subject, state.newest.body) == (last.id, last.subject, b"last")
