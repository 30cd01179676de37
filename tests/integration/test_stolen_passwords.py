"""Who has the password of a database role can change this role's row: that stops neither a renewal nor a migration."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest
from servers import PostgresServer
from store_worlds import PASSWORDS

from holdfast.store.connections import NotMigrated
from holdfast.store.passwords import ROLE_SETTINGS, renew_passwords, set_passwords
from holdfast.store.upgrade.migrate import migrate

pytestmark = pytest.mark.integration

READER = "holdfast_reader"
STOLEN = PASSWORDS[READER]
NEW, THIEFS = "renewed", "of the thief"
CHANGE = f"alter role current_user password '{THIEFS}'"
ENDED = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError)
"""How a session learns that it was refused or ended."""
SETTINGS = """
select rolname, coalesce(datname, '') as datname, setconfig from pg_db_role_setting
join pg_roles on pg_roles.oid = setrole left join pg_database on pg_database.oid = setdatabase order by 1, 2
"""


async def _log_in(server: PostgresServer, password: str) -> asyncpg.Connection[Any]:
    connection = await asyncpg.connect(server.url_of(READER, password))
    await connection.execute("set default_transaction_read_only = off")
    return connection


async def _migrated(server: PostgresServer) -> None:
    await asyncio.to_thread(migrate, server.url, PASSWORDS | {READER: NEW})


async def _set(server: PostgresServer) -> None:
    await set_passwords(server.url, {READER: NEW})


async def _renewed(server: PostgresServer) -> None:
    await renew_passwords(server.url, {READER: NEW})


@pytest.fixture(autouse=True)
def _as_before(postgres: PostgresServer) -> Iterator[None]:
    yield
    asyncio.run(set_passwords(postgres.url, {READER: STOLEN}))


@asynccontextmanager
async def thieves(server: PostgresServer) -> AsyncIterator[None]:
    """Sessions that change the password again and again, and log in again with what may be in force."""
    began = asyncio.Event()

    async def steal() -> None:
        while True:
            for password in (THIEFS, STOLEN):
                with contextlib.suppress(*ENDED):
                    connection = await _log_in(server, password)
                    while not connection.is_closed():
                        # A thief before it may have done so a moment ago.
                        with contextlib.suppress(asyncpg.InternalServerError):
                            await connection.execute(CHANGE)
                            began.set()
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(steal()) for _ in range(3)]
        await began.wait()
        yield
        for task in running:
            task.cancel()


@pytest.mark.parametrize("give", [_migrated, _set, _renewed])
async def test_a_session_that_holds_its_role_is_ended(
    postgres: PostgresServer, give: Callable[[PostgresServer], Awaitable[None]]
) -> None:
    thief = await _log_in(postgres, STOLEN)
    await thief.execute("set statement_timeout = 0; set idle_in_transaction_session_timeout = 0")
    await thief.execute(f"begin; {CHANGE}")
    async with asyncio.timeout(20):
        await give(postgres)
    await (await _log_in(postgres, NEW)).close()
    assert thief.is_closed()


async def test_a_renewed_password_is_not_changed_by_those_who_had_the_old_one(postgres: PostgresServer) -> None:
    for _ in range(2):
        async with thieves(postgres):
            await _renewed(postgres)
        await (await _log_in(postgres, NEW)).close()
        for password in (STOLEN, THIEFS):
            with pytest.raises(asyncpg.InvalidPasswordError):
                await _log_in(postgres, password)
        await set_passwords(postgres.url, {READER: STOLEN})


@pytest.mark.parametrize("give", [_migrated, _set, _renewed])
async def test_settings_left_in_a_role_do_not_stay(
    postgres: PostgresServer, give: Callable[[PostgresServer], Awaitable[None]]
) -> None:
    thief = await _log_in(postgres, STOLEN)
    for place in ("", "in database holdfast"):
        await thief.execute(f"alter role current_user {place} set statement_timeout = 1")
        await thief.execute(f"alter role current_user {place} set search_path = nothing")
    await thief.close()
    await give(postgres)
    admin = await asyncpg.connect(postgres.url)
    try:
        found = await admin.fetch(SETTINGS)
    finally:
        await admin.close()
    assert {row["rolname"]: dict(it.split("=", 1) for it in row["setconfig"]) for row in found} == ROLE_SETTINGS
    assert {row["datname"] for row in found} == {""}


async def test_a_role_that_cannot_be_closed_leaves_no_other_one_open(postgres: PostgresServer) -> None:
    thief = await _log_in(postgres, STOLEN)
    with pytest.raises(NotMigrated):
        await renew_passwords(postgres.url, {"holdfast_nobody": NEW, READER: NEW})
    for password in (STOLEN, NEW):
        with pytest.raises(asyncpg.InvalidAuthorizationSpecificationError):
            await _log_in(postgres, password)
    with pytest.raises(ENDED):
        await thief.execute("select 1")
