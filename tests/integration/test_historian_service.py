"""The historian on a real bus and a real database: everything once, whatever is sent and whoever is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from holdfast.bus import Message, event_message
from holdfast.bus.nats import NatsBus, connect
from holdfast.clock import Now, system_now
from holdfast.events import EVENT_TYPES, Event, Progress
from holdfast.events.parts.ranks import RankProgress
from holdfast.fresh_ids import uuid7
from holdfast.subjects import dead_letter_subject, event_subject
from holdfast_historian.main import run
from holdfast_historian.partitions import PartitionPolicy
from holdfast_historian.rows import row_of
from holdfast_historian.store import HistorianStore
from tests.integration.bus_worlds import WITHIN_S, until_connected, until_disconnected
from tests.integration.historian_scene import as_body, database, killed_and_restarted, new_database, query, until
from tests.integration.servers import NatsServer, PostgresServer

pytestmark = pytest.mark.integration

VIEWS = (
    *("steps", "generations", "incidents", "incident_timeline", "jobs", "events_by_type", "dead_letters"),
    *("logged_numbers", "throughput", "telemetry", "credential_changes", "shared_faults"),
    *("group_evictions", "device_activity", "port_activity"),
)


urls = database("historian_service")


@asynccontextmanager
async def bus_at(url: str) -> AsyncIterator[NatsBus]:
    bus = await connect(url, "test")
    try:
        yield bus
    finally:
        await bus.close()


@asynccontextmanager
async def historian(bus: NatsBus, database_url: str, now: Now = system_now) -> AsyncIterator[None]:
    task = asyncio.create_task(run(bus, database_url, now, PartitionPolicy()))
    try:
        yield
        assert not task.done(), task.exception()
    finally:
        task.cancel()
        await asyncio.wait([task])


async def recorded(urls: dict[str, str], job: str) -> list[str]:
    return [
        str(row["id"]) for row in await query(urls["reader"], "select id from historian.events where job = $1", job)
    ]


async def until_recorded(urls: dict[str, str], job: str, events: list[Event]) -> None:
    wanted = {event.id for event in events}

    async def there() -> bool:
        return wanted <= set(await recorded(urls, job))

    await until(there, f"{len(events)} events of {job} recorded")
    assert len(await recorded(urls, job)) == len(wanted)


def progress(job: str, number: int, at: datetime | None = None) -> Progress:
    ranks = (RankProgress(rank=0, step=number, phase="forward"),)
    return Progress(id=uuid7(), at=at or system_now(), source="agent/n1", job=job, generation=1, node="n1", ranks=ranks)


async def test_everything_is_recorded_once_however_often_it_is_sent(embedded_nats: str, urls: dict[str, str]) -> None:
    story, _ = killed_and_restarted("once")
    async with bus_at(embedded_nats) as bus, historian(bus, urls["historian"]):
        for repetition in range(3):
            # Another message id each time: the bus must not be the one that drops the repetition.
            await bus.publish_all(
                [
                    msgspec.structs.replace(message, id=f"{message.id}-{repetition}", headers={})
                    for message in map(event_message, story.events)
                ]
            )
        await until_recorded(urls, "once", story.events)
    (row,) = await query(urls["reader"], "select * from historian.events where id = $1::uuid", story.events[1].id)
    assert (row["class"], row["type"], row["job"], row["generation"]) == ("decision", "generation_started", "once", 1)
    assert row["at"] == story.events[1].at
    assert msgspec.json.decode(row["body"]) == msgspec.json.decode(msgspec.json.encode(story.events[1]))


HOSTILE = [
    b"",
    b"\x00\xff\xfe random bytes",
    b"[" * 50_000,
    b'{"type":"no_such_type"}',
    as_body(progress("hostile", 1), generation="seven"),
    as_body(progress("hostile", 1), generation=10**30),
    as_body(progress("hostile", 1), at="0001-01-01T00:00:00+14:00"),
    as_body(progress("hostile", 1), type="eviction", reason="x", blocked_for_s=1),
    as_body(progress("hostile", 1), source="?").replace(b'"?"', b'"\\ud800"'),
    as_body(progress("hostile", 1), source="?").replace(b'"?"', b'"\xff"'),
    b"x" * 900_000,
]
"""Each is refused, and lies in the dead letters."""

STRANGE = [
    as_body(progress("strange", 1), source="nul \0"),
    as_body(progress("strange", 2), unknown="?").replace(b'"?"', b'"\xff"'),
    as_body(progress("strange", 3), unknown="?").replace(b'"?"', b"1e999999"),
    as_body(progress("strange", 4), unknown="?").replace(b'"?"', b"[" * 400 + b"]" * 400),
    as_body(progress("strange", 5), unknown="\ud800".encode("utf-8", "replace").decode(), later={"a": [None, 1.5]}),
    as_body(progress("strange", 6), at="1970-01-01T00:00:00Z"),
    as_body(progress("strange", 7), at="9999-12-31T23:59:59.999999Z"),
    as_body(progress("strange", 8), at="0001-01-01T00:00:00Z"),
    as_body(progress("strange", 9), at="2025-11-20T00:00:00+23:59"),
]
"""Each is an event all the same, and recorded."""


async def test_what_cannot_be_read_harms_nothing_and_can_be_looked_at(embedded_nats: str, urls: dict[str, str]) -> None:
    subject = "holdfast.v1.evidence.progress.{}.n1"
    run_id = uuid7()
    good = [progress("between", number) for number in range(50)]
    async with bus_at(embedded_nats) as bus, historian(bus, urls["historian"]):
        for number, body in enumerate(HOSTILE):
            await bus.publish(Message(id=f"{run_id}-h{number}", subject=subject.format("hostile"), body=body))
            await bus.publish(event_message(good[number]))
        for number, body in enumerate(STRANGE):
            await bus.publish(Message(id=f"{run_id}-s{number}", subject=subject.format("strange"), body=body))
            await bus.publish(event_message(good[len(HOSTILE) + number]))
        await bus.publish_all([event_message(event) for event in good])
        await until_recorded(urls, "between", good)

        async def all_told() -> bool:
            rejected = await query(
                urls["reader"], "select * from historian.dead_letters where subject = $1", subject.format("hostile")
            )
            return len(rejected) == len(HOSTILE) and len(await recorded(urls, "strange")) == len(STRANGE)

        await until(all_told, "hostile ones rejected, strange ones recorded")
        letters = await dead_letters(bus, len(HOSTILE), subject.format("hostile"))
    assert sorted(letters) == sorted(HOSTILE)
    assert await recorded(urls, "hostile") == []
    for view in VIEWS:
        await query(urls["reader"], f"select * from historian.{view}")


async def dead_letters(bus: NatsBus, count: int, subject: str) -> list[bytes]:
    bodies: list[bytes] = []
    async with asyncio.timeout(WITHIN_S):
        async for delivery in bus.consume("DEADLETTERS", f"test-{uuid7()}", [dead_letter_subject("historian")]):
            await delivery.ack()
            if delivery.headers["Holdfast-Subject"] == subject:
                assert delivery.headers["Holdfast-Error"]
                bodies.append(delivery.body)
            if len(bodies) == count:
                break
    return bodies


def sample(kind: type[Event]) -> Event:
    """An event of any type, its required fields filled from their types alone."""
    return msgspec.convert(_fill(msgspec.inspect.type_info(kind)), kind)


def _fill(info: msgspec.inspect.Type) -> object:
    match info:
        case msgspec.inspect.StructType():
            own = {} if info.tag is None else {str(info.tag_field): info.tag}
            return own | {field.encode_name: _fill(field.type) for field in info.fields if field.required}
        case msgspec.inspect.DateTimeType():
            return "2025-11-20T16:51:07Z"
        case msgspec.inspect.StrType(pattern=pattern) if pattern and "[0-9a-f]{8}" in pattern:
            return uuid7()
        case msgspec.inspect.StrType():
            return "x"
        case msgspec.inspect.BoolType():
            return True
        case msgspec.inspect.IntType():
            return 1
        case msgspec.inspect.FloatType():
            return 1.5
        case msgspec.inspect.LiteralType():
            return info.values[0]
        case msgspec.inspect.VarTupleType():
            return [_fill(info.item_type), _fill(info.item_type)]
        case msgspec.inspect.DictType():
            return {}
        case _:
            raise NotImplementedError(f"a required field of type {info}: teach this test to fill it")


VIEW_FIELDS = [
    *("rank", "step", "samples", "exited_at", "last_heard_at", "completed_at", "nodes", "restore_step", "failed_step"),
    *("attempts", "outcome", "adopted", "spec", "body_bytes", "deliveries", "took_s", "checks", "facts", "grants"),
    *("exception", "missing_nodes", "silent_s", "median_s", "waited_s", "ranks", "reason", "symptom", "killed"),
]


@pytest.mark.parametrize("garbage", ["x", {"a": [1]}, [[]], None, 1e300, -1, "0001-01-01T00:00:00+99:99"], ids=str)
async def test_no_recorded_event_can_break_a_view(urls: dict[str, str], garbage: object) -> None:
    """Fields that a type does not declare are stored unchecked, under names that views read from other types."""
    rows = []
    for kind in EVENT_TYPES.values():
        own = set(kind.__struct_fields__)
        for extra in ({}, {name: garbage for name in VIEW_FIELDS if name not in own}):
            event = msgspec.structs.replace(sample(kind), job="garbage", incident=uuid7(), generation=2)
            rows.append(row_of(event_subject(event), as_body(event, **extra)))
    store = await HistorianStore.connect(urls["historian"])
    try:
        await store.create_default_partition()
        await store.record(rows)
    finally:
        await store.close()
    for view in VIEWS:
        await query(urls["reader"], f"select * from historian.{view}")
    words = await query(
        urls["reader"],
        "select type, summary as what from historian.events where type not in ('progress', 'steps_measured')",
    )
    assert not [row["type"] for row in words if not row["what"]]


async def test_days_get_partitions_and_broken_clocks_get_none(embedded_nats: str, urls: dict[str, str]) -> None:
    now = datetime.now(UTC)
    offsets = (-400, -70, -20, -1, 0, 1, 5, 8, 30, 3000)
    events: list[Event] = [progress("days", number, now + timedelta(days=days)) for number, days in enumerate(offsets)]
    where = "select tableoid::regclass::text as partition, at from historian.events where job = 'days' order by at"
    async with bus_at(embedded_nats) as bus:
        # The same day, also around midnight.
        async with historian(bus, urls["historian"], lambda: now):
            await bus.publish_all([event_message(event) for event in events])
            await until_recorded(urls, "days", events)
            held = {row["at"]: row["partition"] for row in await query(urls["reader"], where)}
        for days, event in zip(offsets, events, strict=True):
            own = f"historian.events_{event.at:%Y_%m_%d}"
            assert held[event.at] == (own if -60 <= days <= 7 else "historian.events_default")
        # A day that was far off comes near: its events move to the partition that is made for it, and none is twice.
        async with historian(bus, urls["historian"], lambda: now + timedelta(days=28)):
            await bus.publish_all(
                [msgspec.structs.replace(event_message(event), id=uuid7(), headers={}) for event in events]
            )
            marker = progress("days", 99, now + timedelta(days=28))
            await bus.publish(event_message(marker))
            await until_recorded(urls, "days", [*events, marker])
            held = {row["at"]: row["partition"] for row in await query(urls["reader"], where)}
    assert held[events[-2].at] == f"historian.events_{events[-2].at:%Y_%m_%d}"


async def test_old_days_are_dropped_when_asked(embedded_nats: str, embedded_postgres: str) -> None:
    urls = await new_database(embedded_postgres, "historian_retention")
    now = datetime.now(UTC)
    events: list[Event] = [progress("keep", days, now - timedelta(days=days)) for days in (0, 1, 2, 3, 9, 100)]
    async with bus_at(embedded_nats) as bus:
        # The same day, also around midnight.
        async with historian(bus, urls["historian"], lambda: now):
            await bus.publish_all([event_message(event) for event in events])
            await until_recorded(urls, "keep", events)
        task = asyncio.create_task(run(bus, urls["historian"], lambda: now, PartitionPolicy(keep_days=2)))

        async def dropped() -> bool:
            return len(await recorded(urls, "keep")) == 4

        await until(dropped, "events of 3 and 9 days ago dropped")
        task.cancel()
        await asyncio.wait([task])
    left = set(await recorded(urls, "keep"))
    # The one with the broken clock was recorded today, so it is kept as long as today is.
    assert left == {events[place].id for place in (0, 1, 2, 5)}


async def test_a_killed_database_loses_and_repeats_nothing(embedded_nats: str, tmp_path: Path) -> None:
    server = PostgresServer(tmp_path / "postgres")
    await server.start()
    try:
        urls = await new_database(server.url, "historian_outage")
        events: list[Event] = []
        async with bus_at(embedded_nats) as bus, historian(bus, urls["historian"]):
            for round_ in range(3):
                batch = [progress("outage", 100 * round_ + number) for number in range(100)]
                events += batch
                await bus.publish_all([event_message(event) for event in batch[:50]])
                server.kill()
                await bus.publish_all([event_message(event) for event in batch[50:]])
                await server.start()
                await until_recorded(urls, "outage", events)
    finally:
        server.stop()


async def test_a_killed_bus_loses_and_repeats_nothing(embedded_postgres: str, tmp_path: Path) -> None:
    urls = await new_database(embedded_postgres, "historian_bus")
    server = NatsServer(tmp_path / "nats")
    await server.start()
    try:
        async with bus_at(server.url) as bus, historian(bus, urls["historian"]):
            first = [progress("bus", number) for number in range(200)]
            await bus.publish_all([event_message(event) for event in first])
            server.kill()
            # Else the connection that is lost would be taken for the next one.
            await until_disconnected(bus)
            await server.start()
            second = [progress("bus", number) for number in range(200, 400)]
            await until_connected(bus)
            await bus.publish_all([event_message(event) for event in second])
            await until_recorded(urls, "bus", [*first, *second])
    finally:
        server.stop()


@contextmanager
def historian_process(nats_url: str, database_url: str, log: Path) -> Iterator[int]:
    environment = os.environ | {"HOLDFAST_NATS_URL": nats_url, "HOLDFAST_DATABASE_URL": database_url}
    with open(log, "ab") as output:
        pid = os.posix_spawn(
            sys.executable,
            [sys.executable, "-m", "holdfast_historian"],
            environment,
            file_actions=[(os.POSIX_SPAWN_DUP2, output.fileno(), 1), (os.POSIX_SPAWN_DUP2, output.fileno(), 2)],
        )
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


async def test_a_killed_historian_loses_and_repeats_nothing(
    embedded_nats: str, urls: dict[str, str], tmp_path: Path
) -> None:
    events: list[Event] = [progress("killed", number) for number in range(3000)]
    async with bus_at(embedded_nats) as bus:
        for part in range(3):
            with historian_process(embedded_nats, urls["historian"], tmp_path / "log"):
                before = len(await recorded(urls, "killed"))
                await bus.publish_all([event_message(event) for event in events[part * 1000 : part * 1000 + 1000]])

                async def writing(before: int = before) -> bool:
                    return len(await recorded(urls, "killed")) > before

                await until(writing, "the historian writes")
        with historian_process(embedded_nats, urls["historian"], tmp_path / "log"):
            await until_recorded(urls, "killed", events)
