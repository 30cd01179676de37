"""Messages that mean harm or mean nothing, and a plain NATS client that sends them."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec
import nats

from holdfast.fresh_ids import uuid7
from holdfast.orders.node import NodeOrder
from holdfast.requests import REQUEST_BYTES_MAX
from holdfast.subjects import DEAD_LETTER_STREAM, ROOT

LARGE_BYTES = 5_000_000
LONG_EVENT_BYTES = 980_000
"""A stream refuses what is longer than an event may be (`tests/integration/test_floods.py`)."""


class Hostile(NamedTuple):
    """One message."""

    subject: str
    body: bytes


def event(kind: str, **fields: Any) -> bytes:
    """A body of this type as JSON, with whatever fields."""
    common = {"id": uuid7(), "at": datetime.now(UTC).isoformat(), "source": "nobody", "type": kind}
    return json.dumps(common | fields).encode()


def stream_messages(job: str, node: str) -> Iterator[Hostile]:
    """One message for each way to be unreadable, on subjects that every service and the historian consume."""
    chance = random.Random(1)
    places = {
        "evidence": ("process_exited", "progress", "node_registered", "checkpoint_saved"),
        "finding": ("node_lost", "step_time_measured"),
        "decision": ("nodes_requested", "eviction"),
        "action": ("ranks_started", "nodes_granted"),
        "metric": ("steps_measured",),
    }
    for event_class, kinds in places.items():
        for kind in kinds:
            subject = f"{ROOT}.{event_class}.{kind}.{job}.{node}"
            yield Hostile(subject, chance.randbytes(500))
            yield Hostile(subject, b"")
            yield Hostile(subject, b"\x00" * 100)
            yield Hostile(subject, b"null")
            yield Hostile(subject, b"[" * 100_000)
            yield Hostile(subject, b'{"type":"' + kind.encode() + b'","a":' + b"[" * 5_000 + b"]" * 5_000 + b"}")
            yield Hostile(subject, event("no_such_type", job=job, node=node))
            yield Hostile(subject, event(kind, job=job, node=node, generation="one"))
            yield Hostile(subject, event(kind))
            yield Hostile(subject, event(kind, id="not an id", job=job, node=node))
            yield Hostile(subject, event(kind, job="a.b", node="*"))
            yield Hostile(subject, event(kind, job=job, node=node, at="yesterday"))
            yield Hostile(subject, event("job_finished", job=job, outcome="failed", exit_code=9, reason="because"))
            yield Hostile(subject, event(kind, job=job + "\0", node=node))
            yield Hostile(subject, event(kind, job=job, node=node)[:-20])
    yield Hostile(f"{ROOT}.evidence.progress.{job}.{node}", chance.randbytes(LONG_EVENT_BYTES))
    yield Hostile(f"{ROOT}.decision.eviction.{job}.{node}", event("eviction", reason="x" * LONG_EVENT_BYTES, job=job))
    yield Hostile(f"{ROOT}.metric.steps_measured.{job}.{node}", b'"' + b"a" * LONG_EVENT_BYTES + b'"')
    yield Hostile(f"{ROOT}.evidence.no_such_type.{job}.{node}", event("no_such_type"))
    yield Hostile(f"{ROOT}.evidence.progress", event("progress", ranks=[]))
    yield Hostile(f"{ROOT}.finding.{'very.' * 50}long", b"{}")


def order_messages(node: str) -> Iterator[Hostile]:
    """Desired states that cannot be read, for a node that has a good one."""
    subject = f"$KV.desired.node.{node}"
    yield Hostile(subject, b"\xff\xfe nonsense")
    yield Hostile(subject, b"[" * 100_000)
    yield Hostile(subject, json.dumps({"node": node, "epoch": "many", "generation": 1}).encode())
    yield Hostile(subject, json.dumps({"node": "another", "epoch": 10**6, "generation": 10**6}).encode())
    yield Hostile(subject, b"x" * LARGE_BYTES)


def forged(order: NodeOrder, **fields: Any) -> Hostile:
    """A sound order for the same node that the controller never gave."""
    return Hostile(f"$KV.desired.node.{order.node}", msgspec.structs.replace(order, **fields).encode())


def passing_messages(job: str) -> Iterator[Hostile]:
    """What no stream keeps: heartbeats, log lines, pings."""
    for name in ("stranger", "no\u00f6de", "x" * 500, "node-999999999"):
        yield Hostile(f"{ROOT}.heartbeat.{name}", b"\xff" * 10)
        yield Hostile(f"{ROOT}.heartbeat.{name}", b"")
    for body in (
        b"\xff\xfe",
        b"",
        b"[" * 100_000,
        b'{"rank":"zero"}',
        b'{"rank":0,"stream":"out","lines":["\xff"]}',
    ):
        yield Hostile(f"{ROOT}.log.{job}.0", body)
        yield Hostile(f"{ROOT}.ping.controller", body)


def request_messages() -> Iterator[Hostile]:
    """Requests that no service should accept."""
    for service in ("controller", "standby"):
        subject = f"{ROOT}.request.{service}.ask"
        yield Hostile(subject, b"\xff\xfe")
        yield Hostile(subject, b"")
        yield Hostile(subject, b"[" * 100_000)
        yield Hostile(subject, b"x" * LARGE_BYTES)
        yield Hostile(subject, json.dumps({"request": "nosuchrequest"}).encode())
        yield Hostile(subject, json.dumps({"request": "stopjob", "id": "1", "asked_by": 3}).encode())
        yield Hostile(subject, _submission(nnodes=0))
        yield Hostile(subject, _submission(args=["x" * REQUEST_BYTES_MAX]))
        yield Hostile(subject, _submission(args=["x" * LARGE_BYTES]))
        yield Hostile(subject, _submission(name="a.b"))
        yield Hostile(subject, _submission(mesh="pp=one"))
        yield Hostile(subject, _submission(nnodes=10**15))
        yield Hostile(subject, _submission(nnodes=10**9, nproc_per_node=10**9))


def _submission(**fields: object) -> bytes:
    spec = {"name": "hostile", "script": "x.py", "cwd": "/", "directory": "/", **fields}
    return json.dumps({"request": "submitjob", "id": uuid7(), "asked_by": "nobody", "spec": spec}).encode()


def send(url: str, messages: list[Hostile]) -> None:
    """Publish all of them and wait until the server has them."""

    async def publish() -> None:
        client = await nats.connect(url)
        for message in messages:
            await client.publish(message.subject, message.body)
        await client.flush(timeout=60)
        await client.close()

    asyncio.run(publish())


def ask(url: str, messages: list[Hostile]) -> list[dict[str, Any]]:
    """Send each as a request; the answers."""

    async def request() -> list[dict[str, Any]]:
        client = await nats.connect(url)
        answers = [await client.request(message.subject, message.body, timeout=30) for message in messages]
        await client.close()
        return [json.loads(answer.data) for answer in answers]

    return asyncio.run(request())


def send_raw(url: str, subject: bytes, headers: bytes, body: bytes) -> None:
    """Publish with subject and header block as they stand, which no client library would send."""

    async def publish() -> None:
        client = await nats.connect(url)
        size = len(headers) + len(body)
        frame = b"HPUB %b %d %d\r\n%b%b\r\n" % (subject, len(headers), size, headers, body)
        await client._send_command(frame)
        await client.flush(timeout=30)
        await client.close()

    asyncio.run(publish())


def dead_letters(url: str) -> list[bytes]:
    """The bodies of all dead letters."""

    async def read() -> list[bytes]:
        client = await nats.connect(url)
        stream = client.jetstream()
        state = (await stream.stream_info(DEAD_LETTER_STREAM)).state
        numbers = range(state.first_seq, state.last_seq + 1) if state.messages else []
        letters = [
            (await stream.get_msg(DEAD_LETTER_STREAM, seq=number, direct=True)).data or b"" for number in numbers
        ]
        await client.close()
        return letters

    return asyncio.run(read())


def desired_of(url: str, node: str) -> bytes:
    """What the bus has for a node now."""

    async def read() -> bytes:
        client = await nats.connect(url)
        message = await client.jetstream().get_last_msg("KV_desired", f"$KV.desired.node.{node}")
        await client.close()
        return message.data or b""

    return asyncio.run(read())
