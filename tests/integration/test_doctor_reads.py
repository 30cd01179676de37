"""`holdfast doctor` on a real bus and a real database, one thing wrong at a time; either may be away or frozen."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import asyncpg
import msgspec
import pytest
from click.testing import CliRunner

from holdfast.bus import BusUnavailable, NoResponder, event_message
from holdfast.bus.link import Link
from holdfast.bus.nats import NatsBus, connect
from holdfast.cli.doctor.cluster_findings import findings_of
from holdfast.cli.doctor.facts import SERVICES
from holdfast.cli.doctor.finding import Finding
from holdfast.cli.doctor.odds_lines import odds_lines
from holdfast.cli.doctor.reading_all import read_cluster
from holdfast.cli.doctor.reading_machine import read_health_error
from holdfast.cli.doctor.whereabouts import Whereabouts
from holdfast.cli.main import main
from holdfast.daemon.dead_letters import UnhandledMessage, rejection
from holdfast.daemon.service_shell import answer_pings
from holdfast.events import JobFinished
from holdfast.fresh_ids import uuid7
from holdfast.subjects import event_subject, heartbeat_subject, ping_subject
from tests.integration.historian_scene import new_database, query
from tests.integration.servers import NatsServer, free_port

pytestmark = pytest.mark.integration

NOW = datetime.now(UTC)
BOUND_S = 60.0
"""What a command that never hangs may take on a loaded machine; the limits of its parts add up to 30 s."""


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path_factory.mktemp("nats"))
    asyncio.run(server.start())
    yield server
    server.stop()


@pytest.fixture(scope="module")
def urls(embedded_postgres: str) -> dict[str, str]:
    # The session's own database, which nobody has migrated.
    asyncio.run(query(embedded_postgres, "revoke connect on database holdfast from public"))
    return asyncio.run(new_database(embedded_postgres, "doctor"))


@asynccontextmanager
async def services(server: NatsServer) -> AsyncIterator[NatsBus]:
    """Everything that answers pings: the services, and the agent of node-0."""
    bus = await connect(server.url, "test")
    tasks = [asyncio.create_task(answer_pings(bus, name)) for name in (*SERVICES, "agent-node-0")]
    link = await Link.open(server.url, "test")
    async with asyncio.timeout(BOUND_S):
        for name in (*SERVICES, "agent-node-0"):
            while not await _is_served(link, name):  # noqa: ASYNC110 - the server reports no subscription
                await asyncio.sleep(0.01)
    await link.close()
    try:
        yield bus
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await bus.close()


async def _is_served(link: Link, name: str) -> bool:
    try:
        await link.answer(ping_subject(name), b"")
    except NoResponder:
        return False
    return True


async def findings(where: Whereabouts, *, listen: bool = False) -> list[Finding]:
    """All findings but those of this machine's own disks."""
    found = findings_of(await read_cluster(where, listen=listen))
    return [finding for finding in found if finding.kind != "disk"]


def at(server: NatsServer, urls: dict[str, str]) -> Whereabouts:
    return Whereabouts(nats_url=server.url, database_url=urls["reader"])


@asynccontextmanager
async def row(url: str, table: str, **columns: object) -> AsyncIterator[None]:
    """A row in the database while the block runs."""
    connection = await asyncpg.connect(url)
    names = ", ".join(columns)
    values = ", ".join(f"${number}" for number in range(1, len(columns) + 1))
    await connection.execute(f"insert into {table} ({names}) values ({values})", *columns.values())
    try:
        yield
    finally:
        await connection.execute(f"delete from {table}")
        await connection.close()


@asynccontextmanager
async def _database(admin_url: str, name: str) -> AsyncIterator[None]:
    connection = await asyncpg.connect(admin_url)
    await connection.execute(f'create database "{name}"')
    try:
        yield
    finally:
        await connection.execute(f'drop database "{name}"')
        await connection.close()


async def test_well_and_with_one_thing_wrong_at_a_time(server: NatsServer, urls: dict[str, str]) -> None:
    where = at(server, urls)
    state = {"version": 1, "body": "{}"}
    long_ago = datetime.fromtimestamp(NOW.timestamp() - 3600, UTC)
    async with services(server) as bus:
        assert await findings(where, listen=True) == []
        async with _database(urls["admin"], "Their Own"):
            (open_to_all,) = await findings(where)
        assert open_to_all.kind == "access" and 'database "Their Own" from public' in open_to_all.cure
        message = {"id": uuid7(), "subject": "holdfast.v1.x", "body": b"{}", "headers": "{}", "said_at": long_ago}
        async with row(urls["standby"], "standby.outbox", **message):
            (outbox,) = await findings(where)
        assert (outbox.kind, outbox.about) == ("outbox", "standby") and "takes none of them" in outbox.what
        node = {"key": "node-0", "state": "standby", "reason": "", "epoch": 0, **state}
        async with row(urls["standby"], "standby.nodes", **node):
            assert await findings(where) == []
        async with row(urls["standby"], "standby.nodes", **(node | {"key": "node-1"})):
            (gone,) = await findings(where)
        assert (gone.kind, gone.about) == ("node", "node-1")
        job = {"key": "gpt", "phase": "stopping", "generation": 1, "submitted_at": NOW, "updated_at": long_ago, **state}
        async with row(urls["controller"], "controller.jobs", **job):
            (stopping,) = await findings(where)
        assert (stopping.kind, stopping.about) == ("job", "gpt") and "stopping" in stopping.what
        job |= {"phase": "running", "updated_at": NOW}
        held = {"key": "node-0", "state": "active", "job": "gpt", "reason": "", "epoch": 1, **state}
        record = {"key": "node-0", "failures": 3, "chance": 0.9, **state}
        event = {"id": uuid7(), "at": NOW, "class": "decision", "type": "withheld", "source": "controller"}
        event |= {
            "job": "gpt",
            "node": "node-0",
            "body": json.dumps({"mechanism": "no_replacement", "reason": "0 free"}),
        }
        await query(urls["historian"], "select historian.add_default_partition()")
        async with (
            row(urls["controller"], "controller.jobs", **job),
            row(urls["standby"], "standby.nodes", **held),
            row(urls["controller"], "controller.node_records", **record),
            row(urls["admin"], "historian.events", **event),
        ):
            (kept,) = await findings(where)
        assert (kept.kind, kept.about) == ("spare", "gpt") and "0 free" in kept.what
        odds = [{"plan": "pairs", "in_use": True, "memory_factor": 0, "odds": [_ODDS]}]
        plan = {"key": "gpt", "generation": 1, "nnodes": 2, "strategy": "pairs", "protects": "nothing", "every": 1}
        plan |= {"reason": "no node has a vault", "planned_at": NOW, "version": 1, "body": json.dumps({"odds": odds})}
        async with row(urls["ckpt"], "ckpt.plans", **plan):
            (copies,) = await findings(where)
            assert list(odds_lines(await read_cluster(where, listen=False))) == [], "it keeps nothing in memory"
            async with row(urls["ckpt"], "ckpt.shards", **_SHARD):
                shown = "\n".join(odds_lines(await read_cluster(where, listen=False)))
        assert "of gpt in memory" in shown and "pairs (in use)" in shown and "0.0 %" in shown
        assert copies.kind == "copies" and "no node has a vault" in copies.what
        junk = UnhandledMessage(consumer="controller", subject="holdfast.v1.x", body=b"\x00", error="not JSON")
        await bus.publish_all(list(rejection(junk, NOW, bus.message_bytes_max)))
        (letter,) = await findings(where)
        assert (letter.kind, letter.about) == ("dead_letters", "controller") and "not JSON" in letter.what
    silent = {finding.about for finding in await findings(where) if finding.kind == "service"}
    assert silent == set(SERVICES)


_SHARD = {"key": "gpt/0", "job": "gpt", "node_rank": 0, "node": "node-0", "keeper": "node-1", "step": 3}
_SHARD |= {"generation": 1, "bytes": 8, "state": "whole", "reported_at": NOW, "version": 1, "body": "{}"}
_ODDS = {"loss": "1 machine", "losses": 2, "survived": 0}


async def test_what_was_published_and_is_gone(server: NatsServer, urls: dict[str, str]) -> None:
    async with services(server) as bus:
        message = event_message(_done())
        place, other = await bus.publish_all([message, event_message(_done())])
        assert place is not None and other is not None
        columns = {"id": message.id, "subject": message.subject, "body": message.body, "headers": "{}"}
        columns |= {"published_at": NOW, "stream": place.stream, "sequence": place.sequence}
        async with row(urls["controller"], "controller.outbox", **columns):
            assert await findings(at(server, urls)) == []
        async with row(urls["controller"], "controller.outbox", **(columns | {"sequence": other.sequence})):
            (lost,) = await findings(at(server, urls))
        assert (lost.kind, lost.about) == ("stream", "DECISIONS") and "which the controller published" in lost.what


def _done() -> JobFinished:
    return JobFinished(id=uuid7(), at=NOW, source="controller", job="gpt", outcome="failed", exit_code=1, reason="test")


async def test_a_consumer_that_stands_still(
    server: NatsServer, urls: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.cli.doctor.reading_bus.LISTEN_S", 0.2)
    monkeypatch.setattr("holdfast.cli.doctor.cluster_findings.IDLE_S_MAX", 0.0)
    async with services(server) as bus:
        deliveries = bus.consume("DECISIONS", "historian", ["holdfast.v1.decision.>"])
        first = asyncio.ensure_future(anext(aiter(deliveries)))
        await bus.publish(event_message(_done()))
        delivery = await first
        (stuck,) = await findings(at(server, urls), listen=True)
        assert (stuck.kind, stuck.about) == ("consumer", "historian") and "1 messages of DECISIONS" in stuck.what
        await delivery.ack()
        async with asyncio.timeout(BOUND_S):
            while await findings(at(server, urls), listen=True):
                continue


async def test_the_clock_of_a_node(server: NatsServer, urls: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.cli.doctor.reading_bus.LISTEN_S", 0.5)
    ahead = datetime.fromtimestamp(NOW.timestamp() + 3600, UTC)

    async def beat(bus: NatsBus) -> None:
        while True:
            for body in (b"\xff", b"{}", b'{"node": "node-1", "at": "2026-01-01T00:00:00"}'):
                await bus.broadcast(heartbeat_subject("node-1"), body)
            await bus.broadcast(heartbeat_subject("node-0"), msgspec.json.encode({"node": "node-0", "at": ahead}))
            await asyncio.sleep(0.01)

    async with services(server) as bus:
        beating = asyncio.create_task(beat(bus))
        (clock,) = await findings(at(server, urls), listen=True)
        beating.cancel()
    assert (clock.kind, clock.about) == ("clock", "node-0") and "ahead of that of Postgres" in clock.what


async def test_a_missing_stream(server: NatsServer, urls: dict[str, str]) -> None:
    async with services(server):
        link = await Link.open(server.url, "test")
        await link.answer("$JS.API.STREAM.DELETE.METRICS", b"")
        await link.close()
        (missing,) = await findings(at(server, urls))
    assert (missing.kind, missing.about) == ("stream", "METRICS")


async def test_either_may_be_away_or_frozen(server: NatsServer, urls: dict[str, str]) -> None:
    nowhere = f"127.0.0.1:{free_port()}"
    away = Whereabouts(nats_url=f"nats://{nowhere}", database_url=f"postgresql://x@{nowhere}/x")
    assert [finding.kind for finding in await findings(away, listen=True)] == ["database", "bus"]
    await server.freeze()
    began = time.monotonic()
    (frozen,) = await findings(at(server, urls), listen=True)
    assert frozen.kind == "bus" and time.monotonic() - began < BOUND_S
    server.thaw()


def test_the_servers_own_health_check(server: NatsServer) -> None:
    assert read_health_error(f"http://127.0.0.1:{server.ports.nats_monitor}") == ""
    assert read_health_error(f"http://127.0.0.1:{free_port()}") == ""


@pytest.fixture
def full_server(tmp_path: Path) -> Iterator[NatsServer]:
    """A server with 8 MB for its streams."""
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", tmp_path], check=False).returncode:
        pytest.skip("no right to mount a tmpfs")
    server = NatsServer(tmp_path)
    try:
        asyncio.run(server.start())
        yield server
    finally:
        server.stop()
        subprocess.run(["umount", tmp_path], check=True)


async def _publish_50_mb(link: Link) -> None:
    for _ in range(100):
        await link.answer(event_subject(_done()), b"x" * 500_000, timeout_s=1.0)


async def test_a_bus_whose_disk_was_full_keeps_its_write_error(full_server: NatsServer, urls: dict[str, str]) -> None:
    """nats-server does not even answer a publish then."""
    async with services(full_server) as bus:
        link = await Link.open(full_server.url, "test")
        with pytest.raises(BusUnavailable):
            await _publish_50_mb(link)
        await link.close()
        monitored = msgspec.structs.replace(
            at(full_server, urls), nats_monitor_url=f"http://127.0.0.1:{full_server.ports.nats_monitor}"
        )
        found = await findings(monitored)
        (writes,) = (finding for finding in found if finding.kind == "writes")
        assert "no space left on device" in writes.what and "restart nats-server" in writes.cure
        assert bus.connected_since


def test_the_command(server: NatsServer, urls: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.cli.doctor.reading_bus.LISTEN_S", 0.2)
    addresses = ("--nats-url", server.url, "--database-url", urls["reader"])
    told = CliRunner().invoke(main, ["doctor", *addresses])
    assert told.exit_code == 1, told.output
    assert "ERROR  controller: it does not answer\n    cure: start it" in told.stdout
    assert "Looked at: Postgres, NATS, 0 nodes, 0 jobs" in told.stdout
    data = json.loads(CliRunner().invoke(main, ["doctor", "--json", *addresses]).stdout)
    assert {finding["about"] for finding in data["findings"] if finding["kind"] == "service"} == set(SERVICES)
    short = CliRunner().invoke(main, ["status", *addresses])
    assert "Wrong: controller: it does not answer, and 4 more. `holdfast doctor` shows causes" in short.stdout
    nowhere = CliRunner().invoke(main, ["doctor", "--dir", str(tmp_path)])
    assert nowhere.exit_code == 2 and "there is no cluster" in nowhere.stderr
