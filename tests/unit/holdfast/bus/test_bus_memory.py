"""The bus in memory: a clock that the test owns, and networks that fail for one client alone."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from datetime import UTC, datetime

import pytest

from holdfast.bus import BusUnavailable, Message
from holdfast.bus.in_memory import MemoryBroker
from holdfast.bus.in_memory_broker import subject_matches
from holdfast.subjects import DESIRED_BUCKET

SUBJECT = "holdfast.v1.evidence.process_exited.job.node"


def broker() -> MemoryBroker:
    return MemoryBroker(now=lambda: datetime(2026, 1, 1, tzinfo=UTC))


def message(body: bytes, message_id: str | None = None) -> Message:
    return Message(id=message_id or f"id-{body!r}", subject=SUBJECT, body=body)


@pytest.mark.parametrize(
    ("pattern", "subject", "matches"),
    [
        ("a.b", "a.b", True),
        ("a.b", "a.b.c", False),
        ("a.b.c", "a.b", False),
        ("a.*", "a.b", True),
        ("a.*", "a", False),
        ("a.*.c", "a.b.c", True),
        ("a.>", "a.b.c", True),
        ("a.>", "a", False),
        (">", "a", True),
        ("*.b", "a.c", False),
    ],
)
def test_patterns_match_as_in_nats(pattern: str, subject: str, matches: bool) -> None:
    assert subject_matches(pattern, subject) is matches


async def test_a_retry_waits_for_the_brokers_time() -> None:
    server = broker()
    bus = server.client("a")
    await bus.publish(message(b"1"))
    async with aclosing(bus.consume("EVIDENCE", "c", [SUBJECT])) as deliveries:
        await (await anext(deliveries)).retry(3600)
        again = asyncio.ensure_future(anext(deliveries))
        server.advance(3599)
        await asyncio.sleep(0)
        assert not again.done()
        server.advance(1)
        assert (await again).deliveries == 2


async def test_without_a_clock_of_its_own_time_passes_by_itself() -> None:
    bus = MemoryBroker().client("a")
    await bus.publish(message(b"1"))
    async with aclosing(bus.consume("EVIDENCE", "c", [SUBJECT])) as deliveries:
        await (await anext(deliveries)).retry(0.01)
        assert (await asyncio.wait_for(anext(deliveries), 30)).deliveries == 2


async def test_a_repetition_after_the_duplicate_window_is_stored() -> None:
    server = broker()
    bus = server.client("a")
    for _ in range(2):
        await bus.publish(message(b"1"))
    server.advance(121)
    await bus.publish(message(b"1"))
    assert [item.body for item in server.streams["EVIDENCE"].messages] == [b"1", b"1"]


async def test_old_messages_leave_the_stream() -> None:
    server = broker()
    bus = server.client("a")
    await bus.publish(message(b"1"))
    server.advance(25 * 3600)
    await bus.publish(message(b"2"))
    assert [item.body for item in server.streams["EVIDENCE"].messages] == [b"2"]
    async with aclosing(bus.consume("EVIDENCE", "c", [SUBJECT])) as deliveries:
        assert (await anext(deliveries)).body == b"2"


async def test_one_client_is_cut_off_and_the_other_is_not() -> None:
    server = broker()
    one, two = server.client("a"), server.client("b")
    async with (
        aclosing(one.consume("EVIDENCE", "one", [SUBJECT])) as first,
        aclosing(two.consume("EVIDENCE", "two", [SUBJECT])) as second,
        aclosing(one.watch(DESIRED_BUCKET, "k")) as watched,
    ):
        await two.publish(message(b"1"))
        await two.put(DESIRED_BUCKET, "k", b"1")
        held = await anext(first)
        assert (await anext(watched)).body == b"1"
        one.disconnect()
        assert one.connected_since is None
        with pytest.raises(BusUnavailable):
            await one.publish(message(b"lost"))
        await held.ack()
        await two.publish(message(b"2"))
        await two.put(DESIRED_BUCKET, "k", b"2")
        assert [(await anext(second)).body for _ in range(2)] == [b"1", b"2"]
        arriving = asyncio.ensure_future(anext(first))
        await asyncio.sleep(0)
        assert not arriving.done()
        one.reconnect()
        assert [(await arriving).body, (await anext(first)).body] == [b"1", b"2"]
        assert (await anext(watched)).body == b"2"
