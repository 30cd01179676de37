"""An upgrade of the database is held up by no session for long, and names the one that it does not end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import asyncpg
import pytest
from servers import PostgresServer
from store_worlds import PASSWORDS

from holdfast.store.upgrade import blockers
from holdfast.store.upgrade import migrate as upgrades
from holdfast.store.upgrade.blockers import GIVES_UP_S, PATIENCE_S, HeldUp
from holdfast.store.upgrade.migrate import migrate, pending

pytestmark = pytest.mark.integration

ENDED = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError)
READS = "begin; select from historian.jobs limit 0"


@pytest.fixture
async def outdated(postgres: PostgresServer) -> PostgresServer:
    """A database with the views of another version."""
    async with session(postgres, "postgres") as admin:
        await admin.execute("update public.holdfast_views set sha256 = 'of another version'")
    assert await asyncio.to_thread(pending, postgres.url)
    return postgres


@asynccontextmanager
async def session(server: PostgresServer, role: str) -> AsyncIterator[asyncpg.Connection[Any]]:
    url = server.url if role == "postgres" else server.url_of(role, PASSWORDS[role])
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        connection.terminate()


async def upgrade(server: PostgresServer) -> None:
    await asyncio.to_thread(migrate, server.url, PASSWORDS)
    assert not await asyncio.to_thread(pending, server.url)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upgrades, "PATIENCE_S", 1.0)


@pytest.mark.usefixtures("impatient")
async def test_sessions_of_our_roles_that_hold_it_up_are_ended(outdated: PostgresServer) -> None:
    async with session(outdated, "holdfast_reader") as reader, session(outdated, "holdfast_historian") as service:
        for held in (reader, service):
            await held.execute(f"set idle_in_transaction_session_timeout = 0; {READS}")
        async with asyncio.timeout(20):
            await upgrade(outdated)
        for held in (reader, service):
            with pytest.raises(ENDED):
                await held.execute("select 1")


async def test_a_query_that_ends_soon_is_not_ended(outdated: PostgresServer) -> None:
    async with session(outdated, "holdfast_reader") as reader:
        await reader.execute(READS)
        upgrading = asyncio.create_task(upgrade(outdated))
        async with session(outdated, "postgres") as admin:
            waits = "select count(*) from pg_locks where not granted and relation is not null"
            while not upgrading.done() and not await admin.fetchval(waits):  # noqa: ASYNC110 - the server sends no event
                await asyncio.sleep(0.02)
        await reader.execute("commit")
        await upgrading
        assert await reader.fetchval("select 1") == 1


@pytest.mark.usefixtures("impatient")
async def test_readers_that_come_again_and_again_do_not_stop_it(outdated: PostgresServer) -> None:
    views = ("jobs", "nodes", "incidents", "incident_timeline", "events")

    async def hostile(order: tuple[str, ...]) -> None:
        while True:
            with suppress(*ENDED):
                async with session(outdated, "holdfast_reader") as reader:
                    # In both orders, so that they meet the upgrade in a deadlock.
                    await reader.execute("begin")
                    for view in order:
                        await reader.execute(f"select from historian.{view} limit 0")
                        await asyncio.sleep(0.05)
                    await reader.fetchval("select pg_sleep(30)")
            await asyncio.sleep(0.01)

    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(hostile(order)) for order in (views, views[::-1]) for _ in range(3)]
        await asyncio.sleep(0.5)
        async with asyncio.timeout(60):
            await upgrade(outdated)
        for task in running:
            task.cancel()


async def test_another_roles_session_is_named_and_not_ended(
    outdated: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert GIVES_UP_S > PATIENCE_S
    monkeypatch.setattr(blockers, "GIVES_UP_S", 1.0)
    async with session(outdated, "postgres") as person:
        pid = await person.fetchval("select pg_backend_pid()")
        await person.execute(READS)
        with pytest.raises(
            HeldUp, match=rf"process {pid}, a session of role postgres .* pg_terminate_backend\({pid}\)"
        ):
            await upgrade(outdated)
        assert await asyncio.to_thread(pending, outdated.url)
        await person.execute("commit")
    await upgrade(outdated)
