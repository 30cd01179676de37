"""The disk of NATS is full, and has space again: what was published meanwhile arrives."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import yaml
from bus_worlds import WITHIN_S, take, unique
from servers import PASSWORD

from holdfast.bus import Message
from holdfast.bus.accounts import OPERATOR, users
from holdfast.bus.nats import NatsBus, connect
from holdfast.daemon.relay import Relay
from holdfast.embedded.layout import Ports
from holdfast.embedded.processes.children import Child
from holdfast.embedded.servers.credentials import HOST
from holdfast.embedded.servers.nats import nats_spec
from holdfast.embedded.servers.nats_disk import restart_after_write_errors
from holdfast.embedded.servers.nats_monitor import write_error
from holdfast.embedded.servers.ports import reserve_ports
from holdfast.fresh_ids import uuid7
from holdfast_agent.files.spool import Lane, Spool

pytestmark = pytest.mark.integration

COMPOSE_FILE = Path(__file__).parents[2] / "docker-compose.yml"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 64 MiB."""
    directory = tmp_path / "disk"
    directory.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64m", "holdfast-test", str(directory)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount a file system here: {mounted.stderr.strip()}")
    yield directory
    subprocess.run(["umount", "--lazy", str(directory)], check=True, stdin=subprocess.DEVNULL)


@pytest.fixture
def ports() -> Iterator[Ports]:
    with reserve_ports({}, None) as reserved:
        yield reserved


@pytest.fixture
async def nats(disk: Path, ports: Ports, tmp_path: Path) -> AsyncIterator[Child]:
    """A supervised nats-server with its directory on that disk."""
    passwords = dict.fromkeys(users(()), PASSWORD)
    spec = nats_spec(disk, port=ports.nats, monitor_port=ports.nats_monitor, passwords=passwords)
    child = Child(spec, tmp_path / "nats.log", lambda *_: None)
    run = asyncio.create_task(child.run())
    child.switch_on()
    await child.until_ready()
    yield child
    await child.stop()
    run.cancel()
    await asyncio.wait([run])


@pytest.fixture
async def bus(nats: Child, ports: Ports, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[NatsBus]:
    # A refused write has no answer.
    monkeypatch.setattr("holdfast.bus.nats.ANSWER_TIMEOUT_S", 1.0)
    bus = await connect(f"nats://{OPERATOR}:{PASSWORD}@{HOST}:{ports.nats}", "test", timeout_s=WITHIN_S)
    yield bus
    await bus.close()


def fill(disk: Path) -> Path:
    rest = disk / "rest"
    with rest.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1 << 16))
    assert shutil.disk_usage(disk).free == 0
    return rest


async def until(what: str, condition: Callable[[], object]) -> None:
    try:
        async with asyncio.timeout(WITHIN_S):
            while not condition():  # noqa: ASYNC110 - another process offers no event
                await asyncio.sleep(0.02)
    except TimeoutError:
        pytest.fail(f"not within {WITHIN_S:g} s: {what}")


async def until_refused(url: str) -> None:
    async with asyncio.timeout(WITHIN_S):
        while await write_error(url) is None:  # noqa: ASYNC110 - the server offers no event
            await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def relaying(relay: Relay) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(relay.run())
        yield
        task.cancel()


async def test_nats_is_restarted_when_its_disk_has_space_again(
    disk: Path, nats: Child, bus: NatsBus, ports: Ports, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.embedded.servers.nats_disk.CHECK_EVERY_S", 0.1)
    url = f"http://{HOST}:{ports.nats_monitor}"
    spool, reports = Spool(tmp_path / "agent.db"), list[str]()
    outbox = spool.outbox(Lane.EVIDENCE)
    subject = f"holdfast.v1.evidence.process_exited.{unique('job')}._"
    said = [Message(id=uuid7(), subject=subject, body=b"%d " % number + bytes(4096)) for number in range(100)]
    assert await write_error(url) is None
    async with asyncio.TaskGroup() as group:
        watch = group.create_task(restart_after_write_errors(nats, url, disk, reports.append))
        async with relaying(Relay(outbox, bus)):
            rest = fill(disk)
            spool.commit(said)
            await until_refused(url)
            await until("the full disk is reported", lambda: reports)
            assert "free space on the disk" in reports[0]
            assert nats.restarts == 0
            rest.unlink()
            await until("nats is restarted", lambda: nats.restarts)
            async with asyncio.timeout(WITHIN_S):
                await outbox.until_empty()
            async with contextlib.aclosing(bus.consume("EVIDENCE", unique("c"), [subject])) as deliveries:
                assert [delivery.body for delivery in await take(deliveries, 100)] == [it.body for it in said]
        watch.cancel()
    assert await write_error(url) is None
    spool.close()


@pytest.mark.skipif(shutil.which("wget") is None, reason="there is no wget here")
async def test_the_health_check_of_compose_ends_a_server_that_refuses_writes(
    disk: Path, nats: Child, bus: NatsBus, ports: Ports
) -> None:
    kind, script = yaml.safe_load(COMPOSE_FILE.read_text())["services"]["nats"]["healthcheck"]["test"]
    assert kind == "CMD-SHELL"
    assert nats.record is not None
    here = script.replace("127.0.0.1:8222", f"{HOST}:{ports.nats_monitor}").replace("kill 1", f"kill {nats.record.pid}")
    assert here.count(str(ports.nats_monitor)) == 2

    async def health() -> int:
        process = await asyncio.create_subprocess_exec(
            *("sh", "-c", here),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={"PATH": os.environ.get("PATH", os.defpath)},
        )
        return await process.wait()

    assert await health() == 0
    rest = fill(disk)
    full = Message(id=uuid7(), subject="holdfast.v1.evidence.process_exited.j._", body=bytes(8192))
    publishing = asyncio.create_task(bus.publish(full))
    await until_refused(f"http://{HOST}:{ports.nats_monitor}")
    rest.unlink()
    assert await health() != 0
    await until("the server is started again", lambda: nats.restarts and nats.ready_s is not None)
    await asyncio.wait([publishing])
    assert publishing.exception() is not None
    async with asyncio.timeout(WITHIN_S):
        while await health() != 0:  # noqa: ASYNC110 - the server offers no event
            await asyncio.sleep(0.1)
