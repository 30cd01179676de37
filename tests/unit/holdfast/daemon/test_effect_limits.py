"""Size limits of requests and decisions; messages that the bus refuses for good."""

from __future__ import annotations

import msgspec
import pytest

from holdfast import requests
from holdfast.bus import BusError, Message
from holdfast.bus.in_memory import MemoryBroker
from holdfast.daemon.dead_letters import HEADERS_BYTES_MAX
from holdfast.daemon.effect_limits import EffectTooLarge, require_sendable
from holdfast.daemon.relay import Relay
from holdfast.events import BODY_BYTES_MAX, MessageRejected, decode
from holdfast.events.parts.job import JobSpec
from holdfast.fresh_ids import uuid7
from holdfast.requests import REQUEST_BYTES_MAX, SubmitJob, UnreadableRequest
from holdfast.store.in_memory import MemoryStore
from holdfast.subjects import DEAD_LETTER_STREAM, DESIRED_BUCKET, kv_subject

SUBJECT = "holdfast.v1.decision.eviction.job-1._"


def message(body: bytes, subject: str = SUBJECT) -> Message:
    return Message(id=uuid7(), subject=subject, body=body)


def submission(argument_chars: int) -> bytes:
    spec = JobSpec(name="job-1", script="t.py", cwd="/", directory="/jobs", args=("x" * argument_chars,))
    return msgspec.json.encode(SubmitJob(id=uuid7(), asked_by="ada", spec=spec))


def test_a_request_has_a_limit() -> None:
    room = REQUEST_BYTES_MAX - len(submission(0))
    assert isinstance(requests.decode(submission(room)), SubmitJob)
    with pytest.raises(UnreadableRequest, match="over the limit of 262144"):
        requests.decode(submission(room + 1))


def test_what_is_said_fits_its_consumers_and_the_bus() -> None:
    require_sendable([message(b"x" * BODY_BYTES_MAX)], 1 << 20)
    with pytest.raises(EffectTooLarge, match="over the limit of 1000000"):
        require_sendable([message(b"x"), message(b"x" * (BODY_BYTES_MAX + 1))], 8 << 20)
    with pytest.raises(EffectTooLarge, match="raise it in the server's configuration"):
        require_sendable([message(b"x" * 1000)], 1000)


async def test_what_the_bus_never_takes_becomes_a_dead_letter_and_the_rest_goes_on() -> None:
    broker = MemoryBroker(max_payload=20_000)
    bus, store = broker.client("test"), MemoryStore()
    key = kv_subject(DESIRED_BUCKET, "node.a")
    said = [message(b"1"), message(b"2" * 19_990), message(b"3"), message(b"4" * 30_000, key), message(b"5", key)]
    async with store.transaction() as tx:
        await tx.emit(said)
    relay = Relay(store, bus)
    assert await relay.publish_pending() == len(said)
    assert await relay.publish_pending() == 0
    stored = [item.body for item in broker.streams["DECISIONS"].messages]
    assert stored == [b"1", b"3"]
    assert await bus.get(DESIRED_BUCKET, "node.a") == b"5"
    letters = broker.streams[DEAD_LETTER_STREAM].messages
    room = 20_000 - HEADERS_BYTES_MAX
    assert [letter.body for letter in letters] == [b"2" * room, b""], "the body of an order is withheld"
    assert [letter.headers["Holdfast-Body-Bytes"] for letter in letters] == ["19990", "30000"]
    reports = [decode(item.body) for item in broker.streams["EVIDENCE"].messages]
    assert [report.subject for report in reports if isinstance(report, MessageRejected)] == [SUBJECT, key]


async def test_a_bus_that_takes_no_dead_letter_either_ends_the_relay() -> None:
    bus, store = MemoryBroker(max_payload=100).client("test"), MemoryStore()
    async with store.transaction() as tx:
        await tx.emit([message(b"x" * 200)])
    with pytest.raises(BusError):
        await Relay(store, bus).run()
    assert len(await store.pending(10)) == 1
