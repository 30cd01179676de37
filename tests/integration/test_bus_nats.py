"""Behaviour that needs a real NATS: set-up, refusals, and servers that hang or are killed."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator
from contextlib import aclosing

import msgspec
import pytest
from bus_worlds import WITHIN_S, message, settle, take, take_one, unique, until_connected, until_disconnected
from servers import NatsServer, free_port

from holdfast.bus import BusError, BusUnavailable
from holdfast.bus.client import HardenedClient
from holdfast.bus.link import Link
from holdfast.bus.nats import NatsBus, connect
from holdfast.bus.streams import NS, bucket_config, ensure_stream, stream_config
from holdfast.subjects import CODE_BUCKET, DESIRED_BUCKET, STREAMS

pytestmark = pytest.mark.integration
SUBJECT = "holdfast.v1.evidence.process_exited.{job}.node-1"


@pytest.fixture
async def link(nats: NatsServer) -> AsyncIterator[Link]:
    link = await Link.open(nats.url, "raw")
    yield link
    await link.close()


@pytest.fixture
def heartbeats_every_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is gone is missed after 2.5 seconds, and not after ten."""
    monkeypatch.setattr("holdfast.bus.consumer.HEARTBEAT_S", 1)
    monkeypatch.setattr("holdfast.bus.nats.SILENCE_S", 2.5)


async def api(link: Link, request: str, body: bytes = b"") -> bytes:
    return (await link.answer(f"$JS.API.{request}", body)).data


async def test_several_may_make_the_streams_at_once(tmp_path_factory: pytest.TempPathFactory) -> None:
    server = NatsServer(tmp_path_factory.mktemp("fresh-nats"))
    connecting = asyncio.gather(*(connect(server.url, f"early-{number}", timeout_s=WITHIN_S) for number in range(8)))
    await server.start()  # after they began to ask for it
    try:
        buses = await connecting
        await buses[0].put(DESIRED_BUCKET, "k", b"1")
        assert {await bus.get(DESIRED_BUCKET, "k") for bus in buses} == {b"1"}
        for bus in buses:
            await bus.close()
    finally:
        server.stop()


async def test_a_stream_that_was_set_up_differently_is_brought_into_line(nats: NatsServer, link: Link) -> None:
    wanted = stream_config(STREAMS[0])
    await ensure_stream(link, {**wanted, "max_age": 700_000_000_000, "max_bytes": 1 << 30})
    assert b'"max_age":700000000000' in await api(link, "STREAM.INFO.EVIDENCE")
    bus = await connect(nats.url, "later", timeout_s=WITHIN_S)
    await bus.close()
    assert f'"max_age":{wanted["max_age"]}'.encode() in await api(link, "STREAM.INFO.EVIDENCE")


async def test_a_stream_that_cannot_be_changed_is_named_with_the_cure(link: Link) -> None:
    config = {**stream_config(STREAMS[0]), "name": "OTHER", "subjects": ["other.>"]}
    await ensure_stream(link, config)
    with pytest.raises(BusError, match="nats stream rm OTHER") as refused:
        await ensure_stream(link, {**config, "storage": "memory", "max_bytes": 1 << 20})
    assert not isinstance(refused.value, BusUnavailable)
    with pytest.raises(BusError, match="reserves 4096 MiB of memory"):
        await ensure_stream(link, {**config, "name": "HUGE", "subjects": ["huge.>"], "storage": "memory"})
    await api(link, "STREAM.DELETE.OTHER")


@pytest.mark.usefixtures("heartbeats_every_second")
async def test_a_bucket_that_is_deleted_is_made_again_and_watched(nats: NatsServer, bus: NatsBus, link: Link) -> None:
    key = unique("node")
    await bus.put(DESIRED_BUCKET, key, b"1")
    async with aclosing(bus.watch(DESIRED_BUCKET, key)) as updates:
        assert (await take_one(updates)).body == b"1"
        await api(link, f"STREAM.DELETE.KV_{DESIRED_BUCKET}")
        await ensure_stream(link, bucket_config(DESIRED_BUCKET))
        await bus.put(DESIRED_BUCKET, key, b"2")
        assert (await take_one(updates)).body == b"2"


async def test_a_key_that_nobody_puts_again_leaves_the_bucket(bus: NatsBus, link: Link) -> None:
    key, config = unique("node"), bucket_config(DESIRED_BUCKET)
    assert config["max_age"] == 6 * 24 * 3600 * NS
    await bus.put(DESIRED_BUCKET, key, b"1")
    async with aclosing(bus.watch(DESIRED_BUCKET, key)) as updates:
        assert (await take_one(updates)).body == b"1"
        # Not before: it may take longer than that to be watched.
        await ensure_stream(link, {**config, "max_age": NS, "duplicate_window": NS})
        async with asyncio.timeout(WITHIN_S):
            while await bus.get(DESIRED_BUCKET, key) is not None:  # noqa: ASYNC110 - the server sends no event
                await asyncio.sleep(0.05)
        await ensure_stream(link, config)
        await bus.put(DESIRED_BUCKET, key, b"2")
        assert (await take_one(updates)).body == b"2"
    assert await bus.get(DESIRED_BUCKET, key) == b"2"


@pytest.mark.usefixtures("heartbeats_every_second")
async def test_a_consumer_that_is_deleted_is_made_again(bus: NatsBus, link: Link) -> None:
    job, consumer = unique("job"), unique("c")
    async with aclosing(bus.consume("EVIDENCE", consumer, [SUBJECT.format(job=job)])) as deliveries:
        await bus.publish(message(SUBJECT.format(job=job), b"1"))
        await settle([await take_one(deliveries)])
        await api(link, f"CONSUMER.DELETE.EVIDENCE.{consumer}")
        assert (await take_one(deliveries)).body == b"1"


async def test_a_consumer_held_by_a_dead_connection_still_delivers(nats: NatsServer, bus: NatsBus) -> None:
    # A live connection that nobody reads from stands for one that the server has not noticed to be dead.
    job, consumer = unique("job"), unique("c")
    dead = await connect(nats.url, "dead", timeout_s=WITHIN_S)
    async with aclosing(dead.consume("EVIDENCE", consumer, [SUBJECT.format(job=job)])) as held:
        await bus.publish(message(SUBJECT.format(job=job), b"1"))
        await settle([await take_one(held)])
        async with aclosing(bus.consume("EVIDENCE", consumer, [SUBJECT.format(job=job)])) as deliveries:
            arriving = asyncio.ensure_future(anext(deliveries))
            async with asyncio.timeout(WITHIN_S):
                number = 2
                while not arriving.done():
                    await bus.publish(message(SUBJECT.format(job=job), b"%d" % number))
                    await asyncio.wait([arriving], timeout=0.1)
                    number += 1
            assert int(arriving.result().body) >= 2
    await dead.close()


async def test_no_server_within_the_time_given() -> None:
    with pytest.raises(BusUnavailable, match="is it running"):
        await connect(f"nats://127.0.0.1:{free_port()}", "test", timeout_s=0.3)


async def test_wrong_credentials_are_named_without_being_shown(nats: NatsServer) -> None:
    with pytest.raises(BusError, match="refuses these credentials") as refused:
        await connect(f"nats://nobody:secret@127.0.0.1:{nats.port}", "test", timeout_s=WITHIN_S)
    assert "secret" not in str(refused.value)


async def test_a_server_that_hangs_is_given_up_and_found_again(nats: NatsServer, bus: NatsBus) -> None:
    job = unique("job")
    await nats.freeze()
    try:
        with pytest.raises(BusUnavailable, match=r"did not confirm|lost"):
            await bus.publish(message(SUBJECT.format(job=job), b"1"))
        await until_disconnected(bus)
    finally:
        nats.thaw()
    await until_connected(bus)
    await bus.publish(message(SUBJECT.format(job=job), b"2"))


async def test_large_messages_do_not_cut_off_a_consumer(nats: NatsServer, bus: NatsBus) -> None:
    job, since = unique("job"), bus.connected_since
    body = bytes(1_000_000)
    await bus.publish_all([message(SUBJECT.format(job=job), body) for _ in range(100)])
    async with aclosing(bus.consume("EVIDENCE", unique("c"), [SUBJECT.format(job=job)])) as deliveries:
        for delivery in await take(deliveries, 1):
            time.sleep(0.5)  # noqa: ASYNC251 - a process that is busy and does not read its socket
            await delivery.ack()
        for _ in range(99):
            await settle([await take_one(deliveries)])
    assert bus.connected_since == since


async def test_nothing_published_is_lost_however_often_the_server_is_killed(nats: NatsServer, bus: NatsBus) -> None:
    job = unique("job")
    subject = SUBJECT.format(job=job)
    sent: list[bytes] = []
    over = asyncio.Event()

    async def publish() -> None:
        while not over.is_set():
            await publish_stubbornly([b"%d" % (len(sent) + number) for number in range(10)])
        await publish_stubbornly([b"last"])

    async def publish_stubbornly(bodies: list[bytes]) -> None:
        batch = [message(subject, body) for body in bodies]
        while True:
            try:
                await bus.publish_all(batch)
            except BusUnavailable:
                await asyncio.sleep(0.01)
            else:
                break
        sent.extend(bodies)

    async def kill() -> None:
        for _ in range(5):
            before = len(sent)
            while len(sent) < before + 20:  # noqa: ASYNC110 - the other task sets no event
                await asyncio.sleep(0.01)
            nats.kill()
            await nats.start()
            await until_connected(bus)
        over.set()

    received: set[bytes] = set()
    async with (
        aclosing(bus.consume("EVIDENCE", unique("c"), [subject])) as deliveries,
        asyncio.TaskGroup() as group,
    ):
        group.create_task(kill())
        group.create_task(publish())
        while b"last" not in received:
            delivery = await take_one(deliveries)
            received.add(delivery.body)
            await delivery.ack()
    assert received == set(sent)


async def test_objects_are_laid_out_as_the_object_store_of_nats_does(nats: NatsServer, bus: NatsBus) -> None:
    name, content = unique("object"), bytes(range(256)) * 2000
    await bus.put_objects(CODE_BUCKET, {name: content})
    client = HardenedClient()
    await client.connect(nats.url)
    try:
        store = await client.jetstream().object_store(CODE_BUCKET)
        assert (await store.get(name)).data == content
        # And what others put there is read.
        await store.put(name, b"another")
        assert await bus.get_objects(CODE_BUCKET, [name]) == {name: b"another"}
        await store.delete(name)
        assert await bus.get_objects(CODE_BUCKET, [name]) == {}
    finally:
        await client.close()


async def test_an_object_of_which_a_part_is_gone_is_not_there(bus: NatsBus, link: Link) -> None:
    name, content = unique("object"), unique("content").encode() * 20_000
    await bus.put_objects(CODE_BUCKET, {name: content})
    digest = hashlib.sha256(content).hexdigest()[:32]
    purge = msgspec.json.encode({"filter": f"$O.{CODE_BUCKET}.C.{digest}", "keep": 1})
    await api(link, f"STREAM.PURGE.OBJ_{CODE_BUCKET}", purge)
    assert await bus.get_objects(CODE_BUCKET, [name]) == {}
    await bus.put_objects(CODE_BUCKET, {name: content})
    assert await bus.get_objects(CODE_BUCKET, [name]) == {name: content}


async def test_another_message_under_the_same_id_does_not_swallow_a_decision(nats: NatsServer, link: Link) -> None:
    job, known = unique("job"), unique("id")
    bus = await connect(nats.url, "controller", timeout_s=WITHIN_S)
    try:
        forged = f"holdfast.v1.action.ranks_stopped.{job}.node-1"
        assert b'"seq"' in (await link.answer(forged, b"forged", {"Nats-Msg-Id": known})).data
        decision = message(f"holdfast.v1.decision.eviction.{job}.node-1", b"decided", known)
        stored = [(await bus.publish_all([decision]))[0] for _ in range(2)]
        async with aclosing(bus.consume("DECISIONS", unique("c"), [f"holdfast.v1.decision.*.{job}.>"])) as received:
            assert (await take_one(received)).body == b"decided"
        assert [await bus.lost(position, known) for position in stored] == [False, False]
        own = message(f"holdfast.v1.decision.eviction.{job}.node-2", b"once", unique("id"))
        first, again = [(await bus.publish_all([own]))[0] for _ in range(2)]
        assert first == again, "a repetition of its own is dropped"
    finally:
        await bus.close()
