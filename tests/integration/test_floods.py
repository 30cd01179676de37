"""A node that publishes without end, on a real server with its own password, beside one that publishes little."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from collections.abc import AsyncIterator
from contextlib import aclosing

import msgspec
import pytest
from bus_worlds import WITHIN_S, message, settle, take
from historian_scene import database
from servers import NatsServer

from holdfast.bus import BusError
from holdfast.bus.consumer import attach_consumer, delete_consumer
from holdfast.bus.link import Link
from holdfast.bus.nats import NatsBus, connect
from holdfast.bus.streams import ensure_stream, newest_on, stream_config
from holdfast.bus.survey import survey_consumers
from holdfast.clock import system_now
from holdfast.daemon.process import Daemon
from holdfast.settings.load import Settings
from holdfast.subjects import STREAMS, StreamSpec
from holdfast_historian import floods
from holdfast_historian.floods import FloodGuard
from holdfast_historian.main import serve

pytestmark = pytest.mark.integration

ROOT = "holdfast.v1"
BYTES_MAX = 8 << 20
"""Of a stream in these tests: the real ones hold 256 MiB and more."""
KINDS = {
    "EVIDENCE": "evidence.process_exited",
    "DECISIONS": "action.ranks_started",
    "METRICS": "metric.steps_measured",
}

urls = database("floods")


@pytest.fixture
async def link(guarded: NatsServer, operator: NatsBus) -> AsyncIterator[Link]:
    link = await Link.open(guarded.url, "look")
    for spec in map(small, KINDS):
        await ensure_stream(link, stream_config(spec))
        await link.api(f"STREAM.PURGE.{spec.name}", {}, msgspec.Struct)
    yield link
    await link.close()


@pytest.fixture
async def other(guarded: NatsServer) -> AsyncIterator[NatsBus]:
    bus = await connect(guarded.url_of("agent-n2"), "agent-n2", makes_streams=False, timeout_s=WITHIN_S)
    yield bus
    await bus.close()


def small(stream: str) -> StreamSpec:
    (spec,) = (spec for spec in STREAMS if spec.name == stream)
    return msgspec.structs.replace(spec, bytes_max=BYTES_MAX)


async def held(link: Link, stream: str, subjects: str) -> int:
    request = msgspec.json.encode({"subjects_filter": f"{ROOT}.{subjects}"})
    state = msgspec.json.decode((await link.answer(f"$JS.API.STREAM.INFO.{stream}", request)).data)["state"]
    return sum((state.get("subjects") or {}).values())


async def flood(node: NatsBus, stream: str, count: int, nbytes: int) -> None:
    """Publish as a node with a job of its own invention for each message: no limit for each subject would bound it."""
    subject = f"{ROOT}.{KINDS[stream]}.job-{{}}.n1"
    await node.publish_all([message(subject.format(number), bytes(nbytes)) for number in range(count)])


@pytest.mark.parametrize("stream", KINDS)
async def test_what_other_nodes_and_services_published_stays_until_it_is_read(
    stream: str, link: Link, node: NatsBus, other: NatsBus, operator: NatsBus
) -> None:
    guard = FloodGuard(operator, system_now)
    await other.publish_all([message(f"{ROOT}.{KINDS[stream]}.job.n2", b"{}") for _ in range(50)])
    if stream == "DECISIONS":
        await operator.publish(message(f"{ROOT}.decision.eviction.job.n1", b"{}"))
    await guard.limit(small(stream))
    for _ in range(8):
        await flood(node, stream, 150, 20_000)  # 24 MB in all, three times what the stream holds
        await guard.limit(small(stream))
    assert await held(link, stream, "*.*.*.n2") == 50
    assert await held(link, stream, "decision.>") == (stream == "DECISIONS")
    letter = await newest_on(link, "DEADLETTERS", f"{ROOT}.deadletter.floods")
    assert letter is not None and f"node n1 floods {stream}" in letter.message.headers["Holdfast-Error"]


async def test_the_historian_limits_a_node_for_a_service_that_is_slower(
    guarded: NatsServer,
    urls: dict[str, str],
    link: Link,
    node: NatsBus,
    other: NatsBus,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(floods, "UNREAD_MAX", 1_000)
    await attach_consumer(link, "EVIDENCE", "controller", [f"{ROOT}.evidence.>"])  # and never reads
    this = Daemon(
        name="historian",
        settings=Settings(),
        flags=Namespace(),
        nats_url=guarded.url,
        database_url=urls["historian"],
    )
    running = asyncio.create_task(serve(this))
    try:
        await other.publish(message(f"{ROOT}.evidence.process_exited.job.n2", b"{}"))
        sent = 0
        async with asyncio.timeout(WITHIN_S):
            while await held(link, "EVIDENCE", "*.*.*.n1") == sent:
                assert not running.done()
                await flood(node, "EVIDENCE", 400, 10)
                sent += 400
        assert await held(link, "EVIDENCE", "*.*.*.n2") == 1
    finally:
        running.cancel()
        await asyncio.wait([running])
        await delete_consumer(link, "EVIDENCE", "controller")
        await delete_consumer(link, "EVIDENCE", "historian")


async def test_what_was_published_long_ago_is_no_flood_however_much_is_unread(
    link: Link, node: NatsBus, operator: NatsBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A restored database has the historian receive the streams of weeks again.
    monkeypatch.setattr(floods, "UNREAD_MAX", 200)
    await flood(node, "DECISIONS", 400, 10)
    guard = FloodGuard(operator, system_now)
    for _ in range(2):
        await guard.limit(small("DECISIONS"))
    assert await held(link, "DECISIONS", "*.*.*.n1") == 400


async def test_what_services_have_read_stays(
    link: Link, node: NatsBus, operator: NatsBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(floods, "UNREAD_MAX", 200)
    guard = FloodGuard(operator, system_now)
    await guard.limit(small("EVIDENCE"))
    await flood(node, "EVIDENCE", 400, 10)
    async with aclosing(operator.consume("EVIDENCE", "historian", [f"{ROOT}.evidence.>"])) as deliveries:
        await settle(await take(deliveries, 400))
        async with asyncio.timeout(WITHIN_S):
            while [it.waiting for it in await survey_consumers(link, "EVIDENCE")] != [0]:  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.01)
        await guard.limit(small("EVIDENCE"))
    assert await held(link, "EVIDENCE", "*.*.*.n1") == 400
    await operator.start_over("EVIDENCE", "historian")


@pytest.mark.parametrize("stream", KINDS)
async def test_no_message_is_longer_than_an_event_may_be(stream: str, link: Link, node: NatsBus) -> None:
    await flood(node, stream, 1, 1_000_000)
    with pytest.raises(BusError, match="message size exceeds"):
        await flood(node, stream, 1, 1_100_000)
