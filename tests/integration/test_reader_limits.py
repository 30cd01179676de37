"""The limits of the database's reader hold also against a reader that lifts its own settings."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any

import asyncpg
import pytest
import pytest_asyncio

from holdfast_historian.store import HistorianStore
from tests.integration.historian_scene import new_database, until

pytestmark = pytest.mark.integration

CONNECTIONS_MAX = 20
ONE_LOCK = "savepoint inner_one; alter role current_user set application_name = 'x';"
SHORT = timedelta(seconds=0.2)
LONG = timedelta(hours=1)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def urls(embedded_postgres: str) -> AsyncIterator[dict[str, str]]:
    yield await new_database(embedded_postgres, "reader_limits")


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[asyncpg.Connection[Any]]:
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        connection.terminate()


@asynccontextmanager
async def historian(urls: dict[str, str]) -> AsyncIterator[HistorianStore]:
    store = await HistorianStore.connect(urls["historian"])
    try:
        yield store
    finally:
        await store.close()


async def test_readers_leave_connections_to_the_services(urls: dict[str, str]) -> None:
    async with connected(urls["admin"]) as admin:

        async def readers() -> int:
            return int(await admin.fetchval("select count(*) from pg_stat_activity where usename = 'holdfast_reader'"))

        async def are_as_before() -> bool:
            return await readers() <= before

        before = await readers()
        async with AsyncExitStack() as held:
            with pytest.raises(asyncpg.TooManyConnectionsError):
                await _connect_too_often(held, urls["reader"])
            async with connected(urls["controller"]) as service:
                assert await service.fetchval("select 1") == 1
        # Other tests connect as the reader, too.
        await until(are_as_before, "the server has noticed that they are gone")


async def _connect_too_often(held: AsyncExitStack, url: str) -> None:
    # Connections of tests before may still be ending.
    for _ in range(CONNECTIONS_MAX + 1):
        await held.enter_async_context(connected(url))


@pytest.mark.parametrize(
    ("statement", "transaction", "idle"),
    [
        pytest.param("select pg_sleep(3600)", SHORT, LONG, id="a statement without end"),
        pytest.param("begin; select 1", SHORT, LONG, id="an open transaction"),
        pytest.param("select 1", LONG, SHORT, id="an idle session"),
        pytest.param(f"begin; {ONE_LOCK * 1100}", LONG, LONG, id="many of the server's locks"),
    ],
)
async def test_a_reader_that_lifts_its_limits_is_ended(
    urls: dict[str, str], statement: str, transaction: timedelta, idle: timedelta
) -> None:
    async with connected(urls["reader"]) as reader, historian(urls) as store:
        for setting in ("statement_timeout", "idle_in_transaction_session_timeout", "idle_session_timeout"):
            await reader.execute(f"set {setting} = 0")
        await reader.execute("set default_transaction_read_only = off")
        lost = asyncio.Event()
        reader.add_termination_listener(lambda _: lost.set())
        running = asyncio.create_task(reader.execute(statement))

        async def ended() -> bool:
            await store.end_long_reads(transaction, idle)
            return lost.is_set()

        await until(ended, "the reader's session is ended")
        await asyncio.gather(running, return_exceptions=True)


async def test_services_and_short_reads_are_left_alone(urls: dict[str, str]) -> None:
    async with connected(urls["reader"]) as reader, connected(urls["controller"]) as service, historian(urls) as store:
        await service.execute("begin; select 1")
        assert await store.end_long_reads(LONG, LONG) == 0
        assert await reader.fetchval("select 1") == 1
        await reader.close()
        await asyncio.sleep(SHORT.total_seconds())
        await store.end_long_reads(SHORT, SHORT)
        assert await service.fetchval("select 1") == 1


async def test_only_the_historian_ends_readers(urls: dict[str, str]) -> None:
    for role in ("reader", "controller"):
        async with connected(urls[role]) as connection:
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await connection.execute("select historian.end_long_reads('1 hour', '1 hour')")


async def test_a_reader_stores_nothing(urls: dict[str, str]) -> None:
    async with connected(urls["reader"]) as reader:
        await reader.execute("set default_transaction_read_only = off")
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await reader.execute("select lo_from_bytea(0, 'x')")


async def test_messages_that_nobody_reads_take_no_room(urls: dict[str, str]) -> None:
    async with connected(urls["reader"]) as listener, connected(urls["reader"]) as sender:
        await listener.execute("listen heap; begin; select 1")
        await sender.execute("set default_transaction_read_only = off")
        with pytest.raises(asyncpg.PostgresError, match="too many notifications"):
            await sender.execute("select pg_notify('heap', repeat('x', 7000) || g) from generate_series(1, 1000) g")


LOCKS_AND_LOG = (
    "pg_advisory_lock(1)",
    "pg_try_advisory_lock_shared(1, 2)",
    "pg_advisory_xact_lock(g) from generate_series(1, 2) g",
    "pg_logical_emit_message(false, 'x', 'x')",
)


@pytest.mark.parametrize("function", LOCKS_AND_LOG)
async def test_the_locks_and_the_log_of_all_sessions_are_closed_to_it(urls: dict[str, str], function: str) -> None:
    async with connected(urls["reader"]) as reader:
        await reader.execute("set default_transaction_read_only = off")
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await reader.execute(f"select {function}")


async def test_what_a_reader_sorts_does_not_fill_the_disk(urls: dict[str, str]) -> None:
    async with connected(urls["reader"]) as reader:
        assert await reader.fetchval("show temp_file_limit") == "4GB"
        await reader.execute("set default_transaction_read_only = off")
        for statement in ("set temp_file_limit = -1", "alter role current_user reset temp_file_limit"):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await reader.execute(statement)
