"""A backup of the database: written while services work, restored under them; the record becomes whole again."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest
import pytest_asyncio
from historian_scene import new_database, query, until

from holdfast.bus import event_message
from holdfast.bus.in_memory import MemoryBroker, MemoryBus
from holdfast.clock import system_now
from holdfast.embedded.servers.postgres import programs
from holdfast.events import Progress
from holdfast.events.parts.ranks import RankProgress
from holdfast.fresh_ids import uuid7
from holdfast.store import DatabaseReplaced, StoreUnavailable, dump
from holdfast.store.connections import Connections
from holdfast_historian.main import run

pytestmark = pytest.mark.integration

NAME = "backup-of_it"
"""A name that SQL must quote."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def urls(embedded_postgres: str) -> AsyncIterator[dict[str, str]]:
    yield await new_database(embedded_postgres, NAME)


RIGHTS = """
select grantee::regrole::text, privilege_type, is_grantable from pg_database, aclexplode(datacl)
where datname = current_database() order by 1, 2
"""


def event(number: int) -> Progress:
    ranks = (RankProgress(rank=0, step=number, phase="forward"),)
    return Progress(id=uuid7(), at=system_now(), source="agent/n1", job="job", generation=1, node="n1", ranks=ranks)


async def recorded(urls: dict[str, str]) -> list[str]:
    return [str(row["id"]) for row in await query(urls["reader"], "select id from historian.events order by at, id")]


async def record(bus: MemoryBus, urls: dict[str, str], *events: Progress) -> None:
    """Run a historian until these events are recorded."""
    task = asyncio.create_task(run(bus, urls["historian"], system_now))
    await bus.publish_all([event_message(one) for one in events])

    async def there() -> bool:
        assert not task.done(), task.exception()
        return {one.id for one in events} <= set(await recorded(urls))

    try:
        await until(there, "the events are recorded")
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_a_restored_record_gets_back_what_the_bus_still_has(urls: dict[str, str], tmp_path: Path) -> None:
    bus = MemoryBroker().client("test")
    first, second, third = event(1), event(2), event(3)
    await record(bus, urls, first)
    backup = tmp_path / "holdfast.dump"
    size_bytes = await asyncio.to_thread(dump.write, programs(), urls["admin"], backup)
    assert size_bytes == backup.stat().st_size and backup.stat().st_mode & 0o777 == 0o600
    await record(bus, urls, second)

    task = asyncio.create_task(run(bus, urls["historian"], system_now))
    await bus.publish_all([event_message(third)])

    async def there() -> bool:
        return third.id in await recorded(urls)

    await until(there, "a historian has connections to the database before")
    name = f'"{NAME}"'
    await query(urls["admin"], f"grant temporary on database {name} to holdfast_reader")
    allowed = await query(urls["admin"], RIGHTS)
    dump.require_complete(programs(), backup)
    before = await asyncio.to_thread(dump.restore, programs(), urls["admin"], backup, system_now())
    assert third.id not in await recorded(urls)
    assert await query(urls["admin"], RIGHTS) == allowed, "who may connect is in no backup"
    await bus.publish_all([event_message(event(4))])
    with pytest.raises(ExceptionGroup) as ended:
        await asyncio.wait_for(task, 60)
    assert ended.group_contains(DatabaseReplaced), "it has read what holds no more"

    await record(bus, urls, event(5))
    assert {first.id, second.id, third.id} <= set(await recorded(urls))
    kept = urls["admin"].replace(urlsplit(urls["admin"]).path, f"/{before}")
    assert third.id in {str(row["id"]) for row in await query(kept, "select id from historian.events")}


async def test_a_damaged_backup_changes_nothing(urls: dict[str, str], tmp_path: Path) -> None:
    backup, damaged = tmp_path / "holdfast.dump", tmp_path / "damaged.dump"
    before = await recorded(urls)
    await asyncio.to_thread(dump.write, programs(), urls["admin"], backup)
    body = backup.read_bytes()
    for content in (b"", b"not a backup", body[: len(body) // 2]):
        damaged.write_bytes(content)
        with pytest.raises(dump.DumpFailed):
            dump.require_complete(programs(), damaged)
        with pytest.raises(dump.DumpFailed):
            await asyncio.to_thread(dump.restore, programs(), urls["admin"], damaged, system_now())
    databases = await query(urls["admin"], "select datname from pg_database where datname like $1", f"{NAME}%restored%")
    assert databases == [] and await recorded(urls) == before


async def test_a_backup_that_cannot_be_written_leaves_no_file(urls: dict[str, str], tmp_path: Path) -> None:
    target = tmp_path / "holdfast.dump"
    wrong = urls["admin"].replace(urlsplit(urls["admin"]).path, "/no-such-database")
    with pytest.raises(dump.DumpFailed, match="no-such-database"):
        await asyncio.to_thread(dump.write, programs(), wrong, target)
    with pytest.raises(FileNotFoundError):
        await asyncio.to_thread(dump.write, programs(), urls["admin"], tmp_path / "nowhere" / "holdfast.dump")
    assert list(tmp_path.iterdir()) == []


async def test_services_that_were_refused_meanwhile_are_let_in_again(urls: dict[str, str], tmp_path: Path) -> None:
    """A restore that fails at the swap leaves the present database open."""
    backup, before = tmp_path / "holdfast.dump", await recorded(urls)
    await asyncio.to_thread(dump.write, programs(), urls["admin"], backup)
    now = system_now()
    taken = f"{NAME}_before_{now:%Y%m%dT%H%M%S%f}"
    await query(urls["admin"], f'create database "{taken}"')
    with pytest.raises(asyncpg.DuplicateDatabaseError):
        await asyncio.to_thread(dump.restore, programs(), urls["admin"], backup, now)
    assert await recorded(urls) == before
    await query(urls["admin"], f'drop database "{taken}"')


async def test_a_service_that_connects_during_the_swap_waits_for_the_other_database(urls: dict[str, str]) -> None:
    beside = dump._beside(urls["admin"])
    renames, others = await asyncpg.connect(beside), await asyncpg.connect(beside)
    connections = await Connections.prepare(urls["historian"], "test", most=1)

    async def connected() -> None:
        async with connections.one():
            pass

    async with renames.transaction():
        await dump._rename(renames, others, NAME, f"{NAME}_restored_x")
        connecting = asyncio.create_task(connected())
        waits = "select true from pg_locks where not granted and locktype = 'object'"
        async with asyncio.timeout(10):
            while not await others.fetchval(waits):  # noqa: ASYNC110 - the server sends no event
                await asyncio.sleep(0.01)
    with pytest.raises(StoreUnavailable):
        await connecting
    await dump._rename(renames, others, f"{NAME}_restored_x", NAME)
    await connected()
    await connections.close()
    await renames.close()
    await others.close()


KILLED = """
import asyncio, os, signal, sys
from holdfast.store import dump

rename = dump._rename

async def killed(*arguments):
    await rename(*arguments)
    os.kill(os.getpid(), signal.SIGKILL)

dump._rename = killed
asyncio.run(dump._swap(*sys.argv[1:]))
"""


async def test_a_restore_that_is_killed_amid_the_swap_changes_nothing(urls: dict[str, str], tmp_path: Path) -> None:
    before = await recorded(urls)
    left, own = f"{NAME}_restored_{'1' * 8}T{'1' * 12}", f"{NAME}_restored_by_hand"
    for name in (left, own):
        await query(urls["admin"], f'create database "{name}"')
    words = [sys.executable, "-c", KILLED, urls["admin"], NAME, left, f"{NAME}_before_x"]
    process = await asyncio.create_subprocess_exec(*words, stdin=asyncio.subprocess.DEVNULL)
    assert await process.wait() == -signal.SIGKILL
    assert await names(urls) == {NAME, left, own}
    assert await recorded(urls) == before
    backup = tmp_path / "holdfast.dump"
    await asyncio.to_thread(dump.write, programs(), urls["admin"], backup)
    await asyncio.to_thread(dump.restore, programs(), urls["admin"], backup, system_now())
    assert await names(urls) == {NAME, own}, "what the killed one left is gone"
    assert await recorded(urls) == before
    await query(urls["admin"], f'drop database "{own}"')


async def names(urls: dict[str, str]) -> set[str]:
    """The present database, and those that restores have left."""
    pattern = f"^{NAME}($|_restored)"
    rows = await query(urls["admin"], "select datname from pg_database where datname ~ $1", pattern)
    return {row["datname"] for row in rows}
