"""The storage of Postgres fails, also while the server recovers from that, and is well again: the server comes back."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import asyncpg
import pytest

from holdfast.embedded.processes.children import Child
from holdfast.embedded.servers import postgres_recovery
from holdfast.embedded.servers.identity import choose_identity
from holdfast.embedded.servers.ports import reserve_ports
from holdfast.embedded.servers.postgres import admin_url, initialise, postgres_spec, programs

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler: no library can be built"),
]
SOURCE = Path(__file__).with_name("failing_storage.c")
PASSWORD = "for-tests"
WITHIN_S = 60.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class World:
    postgres: Child
    url: str
    flag: Path
    log: Path
    lines: list[str]

    async def refusal(self) -> str:
        """Return why a connection is refused, "" if it is accepted."""
        try:
            await (await asyncpg.connect(self.url, timeout=5.0)).close()
        except (asyncpg.PostgresError, OSError) as error:
            return str(error)
        return ""


@pytest.fixture
def library(tmp_path: Path) -> Path:
    built = tmp_path / "failing.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(built), str(SOURCE), "-ldl"], check=True)
    return built


@pytest.fixture
async def world(tmp_path: Path, library: Path) -> AsyncIterator[World]:
    """A supervised Postgres whose writes and syncs fail while a file exists."""
    flag, log = tmp_path / "failing", tmp_path / "postgres.log"
    directory = tmp_path / "postgres"
    directory.mkdir()
    identity = choose_identity(programs() / "postgres", directory)
    await initialise(directory, password=PASSWORD, identity=identity, log=log, durable=False)
    failing = {"LD_PRELOAD": str(library), "FAILING_FLAG": str(flag), "FAILING_DIRECTORY": str(directory / "data")}
    with reserve_ports({}, None) as ports:
        spec = postgres_spec(directory, port=ports.postgres, password=PASSWORD, identity=identity)
        lines = list[str]()
        child = Child(
            dataclasses.replace(spec, environment={**spec.environment, **failing}),
            log,
            lambda _, line: lines.append(line or ""),
        )
        run = asyncio.create_task(child.run())
        child.switch_on()
        await child.until_ready()
        url = admin_url(ports.postgres, PASSWORD, "postgres")
        yield World(postgres=child, url=url, flag=flag, log=log, lines=lines)
        child.kill()
        await child.until_ended()
        run.cancel()
        await asyncio.wait([run])


async def until(what: str, condition: Callable[[], Awaitable[object]]) -> None:
    try:
        async with asyncio.timeout(WITHIN_S):
            while not await condition():  # noqa: ASYNC110 - another process offers no event
                await asyncio.sleep(0.02)
    except TimeoutError:
        pytest.fail(f"not within {WITHIN_S:g} s: {what}")


async def test_postgres_comes_back_after_its_recovery_failed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_recovery, "CHECK_EVERY_S", 0.05)
    monkeypatch.setattr(postgres_recovery, "REFUSES_S_MAX", 0.3)
    reports, committed = list[str](), 0
    connection = await asyncpg.connect(world.url)
    await connection.execute("create table events (number int primary key, body text)")
    with contextlib.suppress(asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
        while True:
            await connection.execute("insert into events values ($1, repeat('x', 1000))", committed)
            committed += 1
            if committed == 50:
                world.flag.touch()
    assert committed == 50

    async def has_no_recovery() -> bool:
        return "PANIC:  could not write file" in world.log.read_text() and "recovery mode" in await world.refusal()

    await until("the recovery has failed, and the server has not ended", has_no_recovery)
    process = world.postgres.record
    assert process is not None
    async with asyncio.TaskGroup() as group:
        watch = postgres_recovery.restart_after_failed_recovery(world.postgres, lambda: world.url, reports.append)
        watching = group.create_task(watch)

        async def ended_twice() -> bool:
            return world.postgres.restarts >= 2

        await until("the server is restarted, and ends as its storage fails", ended_twice)
        assert "no process that recovers" in reports[0]
        assert "Input/output error" in str(world.postgres.last_exit)
        world.flag.unlink()

        async def is_back() -> bool:
            return world.postgres.ready_s is not None and not await world.refusal()

        await until("the server accepts connections", is_back)
        watching.cancel()
    connection = await asyncpg.connect(world.url)
    numbers = await connection.fetch("select number from events order by 1")
    # The last statement was not acknowledged: it may be there or not.
    assert [it[0] for it in numbers][:committed] == list(range(committed))
    await connection.close()


def command_of(pid: str) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


async def test_a_stop_that_takes_long_is_not_cut_short(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_recovery, "CHECK_EVERY_S", 0.02)
    monkeypatch.setattr(postgres_recovery, "REFUSES_S_MAX", 0.1)
    process = world.postgres.record
    assert process is not None
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    (checkpointer,) = (int(it) for it in children if b"checkpointer" in command_of(it))
    reports = list[str]()
    async with asyncio.TaskGroup() as group:
        watch = postgres_recovery.restart_after_failed_recovery(world.postgres, lambda: world.url, reports.append)
        watching = group.create_task(watch)
        os.kill(checkpointer, signal.SIGSTOP)
        world.postgres.switch_off()

        async def refuses() -> bool:
            return not postgres_recovery.at_work(process.pid) and bool(await world.refusal())

        await until("it refuses, and nothing recovers", refuses)
        await asyncio.sleep(0.5)
        os.kill(checkpointer, signal.SIGCONT)
        await world.postgres.until_ended()
        watching.cancel()
    assert reports == [] and world.postgres.last_exit == "exit code 0"


def test_where_the_kernel_names_no_children_a_server_is_left_alone() -> None:
    assert postgres_recovery.at_work(2**22 + 1)


def test_the_cause_of_an_end_is_the_last_failure_since_the_start() -> None:
    start = "2026-11-30 08:40:31 UTC [1] LOG:  starting PostgreSQL 18.4 on x86_64"
    failed = '2026-11-30 08:40:34 UTC [2] PANIC:  could not write file "data/global/pg_control": Input/output error'
    refused = "2026-11-30 08:40:35 UTC [3] postgres@postgres FATAL:  the database system is in recovery mode"
    found = 'could not write file "data/global/pg_control": Input/output error'
    assert postgres_recovery.cause_of_end([start, failed, refused]) == found
    assert postgres_recovery.cause_of_end([start, failed, start, refused]) == ""
