"""The migrations make what the models say, and open to each role what is its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from servers import PostgresServer
from sqlalchemy import Connection, MetaData
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import create_async_engine
from store_worlds import PASSWORDS, ROLES

from holdfast.store.migrations_place import migrations_directory
from holdfast.store.postgres import PostgresStore
from holdfast.store.upgrade.migrate import UnknownRevision, migrate, pending
from holdfast_analyzer.tables import METADATA as ANALYZER
from holdfast_ckpt.tables import METADATA as CKPT
from holdfast_controller.tables import METADATA as CONTROLLER
from holdfast_historian.tables import METADATA as HISTORIAN
from holdfast_standby.tables import METADATA as STANDBY

pytestmark = pytest.mark.integration

SCHEMAS = ("analyzer", "ckpt", "controller", "historian", "standby")
DECIDING = ("analyzer", "ckpt", "controller", "standby")
MODELS: list[MetaData] = [ANALYZER, CKPT, CONTROLLER, HISTORIAN, STANDBY]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    server = PostgresServer(tmp_path_factory.mktemp("postgres"))
    asyncio.run(server.start())
    assert pending(server.url)
    with ThreadPoolExecutor() as threads:
        for done in [threads.submit(migrate, server.url, PASSWORDS) for _ in range(3)]:
            done.result()
    yield server
    server.stop()


@asynccontextmanager
async def connected(server: PostgresServer, role: str) -> AsyncIterator[asyncpg.Connection[Any]]:
    name = f"holdfast_{role}"
    connection = await asyncpg.connect(server.url_of(name, PASSWORDS[name]))
    try:
        yield connection
    finally:
        await connection.close()


def _is_ours(name: str | None, kind: str, parents: dict[str, Any]) -> bool:
    if kind == "schema":
        return name in SCHEMAS
    if kind == "table":
        # The historian makes a partition for every day.
        return not (parents["schema_name"] == "historian" and str(name).startswith("events_"))
    return True


def _differences(connection: Connection) -> list[Any]:
    context = MigrationContext.configure(
        connection,
        opts={
            "include_schemas": True,
            "include_name": _is_ours,
            "compare_type": True,
            "compare_server_default": True,
            "version_table_schema": "public",
        },
    )
    return list(compare_metadata(context, MODELS))  # type: ignore[arg-type]


async def test_the_migrations_make_what_the_models_say(server: PostgresServer) -> None:
    engine = create_async_engine(make_url(server.url).set(drivername="postgresql+asyncpg"))
    async with engine.connect() as connection:
        assert await connection.run_sync(_differences) == []
    await engine.dispose()


def test_migrating_again_changes_nothing_but_passwords(server: PostgresServer) -> None:
    assert not pending(server.url)
    migrate(server.url, PASSWORDS | {"holdfast_ckpt": "new"})
    asyncio.run(_log_in(server, "holdfast_ckpt", "new"))
    with pytest.raises(asyncpg.InvalidPasswordError):
        asyncio.run(_log_in(server, "holdfast_ckpt", PASSWORDS["holdfast_ckpt"]))
    migrate(server.url, PASSWORDS)
    asyncio.run(_log_in(server, "holdfast_ckpt", PASSWORDS["holdfast_ckpt"]))


async def _log_in(server: PostgresServer, role: str, password: str) -> None:
    connection = await asyncpg.connect(server.url_of(role, password))
    await connection.close()


@pytest.mark.parametrize("schema", DECIDING)
async def test_a_service_writes_its_own_schema_only(server: PostgresServer, schema: str) -> None:
    async with connected(server, schema) as connection:
        await connection.execute(f"insert into {schema}.inbox (id) values ('x')")
        await connection.execute(f"update {schema}.inbox set handled_at = now()")
        await connection.execute(f"delete from {schema}.inbox")
        await connection.execute(
            f"insert into {schema}.outbox (id, subject, body, headers) values ('x', 's', 'b', '{{}}')"
        )
        await connection.execute(f"delete from {schema}.outbox")
        for other in DECIDING:
            if other != schema:
                for statement in (
                    f"insert into {other}.inbox (id) values ('x')",
                    f"delete from {other}.inbox",
                    f"select * from {other}.inbox",
                ):
                    with pytest.raises(asyncpg.InsufficientPrivilegeError):
                        await connection.execute(statement)
        for statement in (
            "select * from historian.events",
            "create table public.mine (x int)",
            f"create table {schema}.mine (x int)",
            f"drop table {schema}.inbox",
            f"truncate {schema}.inbox",
            "create schema mine",
            "create temporary table mine (x int)",
            "create role mine",
            "select pg_read_file('/etc/passwd')",
        ):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await connection.execute(statement)


async def test_the_historian_makes_partitions_and_nothing_else(server: PostgresServer) -> None:
    async with connected(server, "historian") as connection:
        await connection.execute("select historian.add_default_partition()")
        await connection.execute("select historian.add_partition('2020-01-01')")
        await connection.execute(
            "insert into historian.events (id, at, class, type, source, body) "
            "values (gen_random_uuid(), '2020-01-01 12:00+00', 'evidence', 'x', 'test', '{}')"
        )
        for statement in (
            "select * from controller.jobs",
            "create table controller.mine (x int)",
            "create table historian.mine (x int check (x > 0))",
            "create function historian.mine() returns int language sql as 'select 1'",
            "alter table historian.events_2020_01_01 add check (id is not null)",
            "create trigger mine after insert on historian.events execute function now()",
        ):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await connection.execute(statement)
    async with connected(server, "reader") as reader:
        assert await reader.fetchval("select count(*) from historian.events") == 1
        assert await reader.fetchval("select count(*) from historian.events_2020_01_01") == 1
        for statement in (
            "select historian.add_partition('2020-01-02')",
            "select historian.drop_partition('2020-01-01')",
        ):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await reader.execute(statement)
    async with connected(server, "historian") as connection:
        await connection.execute("select historian.drop_partition('2020-01-01')")
        assert await connection.fetchval("select to_regclass('historian.events_2020_01_01')") is None


SECRET = {("controller", table) for table in ("jobs", "job_changes", "job_secrets", "outbox")}
"""Their `body` is closed: the last two hold the values of --env and the tokens of jobs."""


async def test_the_reader_reads_all_but_secrets_and_writes_nothing(server: PostgresServer) -> None:
    admin = await asyncpg.connect(server.url)
    await admin.execute("create table controller.later (x int)")
    tables = await admin.fetch(
        "select table_schema, table_name from information_schema.tables where table_schema = any($1)", SCHEMAS
    )
    async with connected(server, "reader") as reader:
        assert len(tables) > 14
        for schema, table in tables:
            if (schema, table) not in SECRET:
                await reader.fetch(f'select * from {schema}."{table}" limit 1')
        assert await reader.fetchval("show statement_timeout") == "30s"
        assert await reader.fetchval("show jit") == "off"
        with pytest.raises(asyncpg.ReadOnlySQLTransactionError):
            await reader.execute("delete from controller.later")
        await reader.execute("set default_transaction_read_only = off")
        for statement in (
            "delete from controller.later",
            "insert into analyzer.inbox (id) values ('x')",
            "create table controller.mine (x int)",
            "create table public.mine (x int)",
            "select nextval('controller.outbox_position_seq')",
        ):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await reader.execute(statement)
    await admin.execute("drop table controller.later")
    await admin.close()


async def test_the_reader_sees_of_jobs_and_orders_all_but_their_bodies(server: PostgresServer) -> None:
    admin = await asyncpg.connect(server.url)
    async with connected(server, "reader") as reader:
        for schema, table in SECRET:
            columns = await admin.fetch(
                "select column_name from information_schema.columns where table_schema = $1 and table_name = $2",
                *(schema, table),
            )
            names = {str(column[0]) for column in columns}
            assert "body" in names
            await reader.fetch(f"select {', '.join(sorted(names - {'body'}))} from {schema}.{table}")
            for hidden in ("body", "*", f"{table}"):
                with pytest.raises(asyncpg.InsufficientPrivilegeError):
                    await reader.fetch(f"select {hidden} from {schema}.{table}")
    await admin.close()


def test_every_role_has_a_password(server: PostgresServer) -> None:
    for role in ROLES:
        with pytest.raises(asyncpg.InvalidPasswordError):
            asyncio.run(_log_in(server, f"holdfast_{role}", ""))


async def test_other_roles_of_the_server_do_not_connect_and_no_other_database_is_touched(
    old_server: PostgresServer,
) -> None:
    await _run(old_server, "create role stranger login password 'theirs'")
    await _run(old_server, "create database theirs")
    await _log_in(old_server, "stranger", "theirs")
    before = await _value(old_server, OTHER_DATABASES)
    await asyncio.to_thread(migrate, old_server.url, PASSWORDS)
    with pytest.raises(asyncpg.InsufficientPrivilegeError, match="permission denied for database"):
        await _log_in(old_server, "stranger", "theirs")
    for role in ROLES:
        await _log_in(old_server, f"holdfast_{role}", PASSWORDS[f"holdfast_{role}"])
    assert await _value(old_server, OTHER_DATABASES) == before
    # Whoever is let in by hand stays.
    await _run(old_server, "grant connect on database holdfast to stranger")
    await asyncio.to_thread(migrate, old_server.url, PASSWORDS)
    await _log_in(old_server, "stranger", "theirs")


OTHER_DATABASES = "select array_agg((datname, datacl)::text) from pg_database where datname <> current_database()"


def test_a_failed_migration_leaves_nothing(tmp_path_factory: pytest.TempPathFactory) -> None:
    server = PostgresServer(tmp_path_factory.mktemp("postgres-fails"))
    asyncio.run(server.start())
    try:
        with pytest.raises(Exception, match="does not exist"):
            migrate(server.url, {"holdfast_nobody": "x"})
        assert pending(server.url)
        migrate(server.url, {})
        assert not pending(server.url)
        of_migrations = asyncio.run(_value(server, SETTINGS_OF_ROLES))
        migrate(server.url, PASSWORDS)
        assert asyncio.run(_value(server, SETTINGS_OF_ROLES)) == of_migrations
    finally:
        server.stop()


SETTINGS_OF_ROLES = """
select array_agg((setrole::regrole, setdatabase, setting)::text order by setrole, setdatabase, setting)
from pg_db_role_setting, unnest(setconfig) setting
"""


def test_views_are_replaced_when_their_script_has_changed_and_only_then(server: PostgresServer) -> None:
    before = asyncio.run(_value(server, JOBS_VIEW))
    migrate(server.url, PASSWORDS)
    assert asyncio.run(_value(server, JOBS_VIEW)) == before, "a database that is up to date is left alone"
    asyncio.run(_value(server, "update public.holdfast_views set sha256 = 'of another version' returning sha256"))
    assert pending(server.url)
    migrate(server.url, PASSWORDS)
    assert not pending(server.url)
    assert asyncio.run(_value(server, JOBS_VIEW)) not in (None, before)
    assert asyncio.run(_value(server, "select count(*) from public.holdfast_views")) == 1


def test_a_database_of_the_revision_before_is_upgraded_with_its_events(old_server: PostgresServer) -> None:
    asyncio.run(upgrade_to(old_server, "0019"))
    for statement in (
        "create function historian.in_words(type text, body jsonb) returns text language sql as $$ select '' $$",
        "create view historian.incident_timeline as "
        "select historian.in_words(type, body) as what from historian.events",
        "create table historian.events_default partition of historian.events default",
        "alter table historian.events_default owner to holdfast_historian",
        *(
            "insert into historian.events (id, at, class, type, source, job, incident, body) values "
            f"('019aa0f2-6c00-7000-8000-00000000000{number}', now(), 'decision', '{kind}', 'controller', 'old', "
            f"'019aa0f2-6c00-7000-8000-000000000001', '{body}')"
            for number, kind, body in ((1, "incident_opened", '{"reason": "it hangs"}'), (2, "breaker_reset", "{}"))
        ),
    ):
        asyncio.run(_run(old_server, statement))
    asyncio.run(_run(old_server, "insert into standby.inbox (id) values ('handled')"))
    assert pending(old_server.url)
    migrate(old_server.url, PASSWORDS)
    assert not pending(old_server.url)
    asyncio.run(_knows_as_handled(old_server, "handled"))
    shown = asyncio.run(_value(old_server, "select array_agg(what order by nth) from historian.incident_timeline"))
    assert shown == ["it hangs", "breaker reset"]
    assert asyncio.run(_value(old_server, OF_THE_HISTORIAN)) == 0


OF_THE_HISTORIAN = (
    "select count(*) from pg_class where relowner = 'holdfast_historian'::regrole and relkind in ('r', 'p')"
)


async def _knows_as_handled(server: PostgresServer, message_id: str) -> None:
    url = server.url_of("holdfast_standby", PASSWORDS["holdfast_standby"])
    store = await PostgresStore.connect(url, "standby", application_name="test")
    async with store.transaction() as tx:
        assert not await tx.first_time(message_id, "holdfast.v1.decision.eviction.job.node")
        assert await tx.first_time("another", "holdfast.v1.decision.eviction.job.node")
    await store.close()


def test_a_server_that_dies_within_an_upgrade_is_upgraded_when_it_is_back(old_server: PostgresServer) -> None:
    asyncio.run(upgrade_to(old_server, "0019"))
    asyncio.run(_run(old_server, "insert into standby.inbox (id) values ('handled')"))
    asyncio.run(_kill_within_an_upgrade(old_server))
    asyncio.run(old_server.start())
    assert asyncio.run(_value(old_server, "select version_num from public.alembic_version")) == "0019"
    assert pending(old_server.url)
    migrate(old_server.url, PASSWORDS)
    assert not pending(old_server.url)
    asyncio.run(_knows_as_handled(old_server, "handled"))


async def _kill_within_an_upgrade(server: PostgresServer) -> None:
    """Hold a table that the upgrade changes, and kill the server when it waits for that."""
    person = await asyncpg.connect(server.url)
    await person.execute("begin; lock table standby.inbox in access share mode")
    upgrading = asyncio.create_task(asyncio.to_thread(migrate, server.url, PASSWORDS))
    waits = "select count(*) from pg_locks where not granted and relation = 'standby.inbox'::regclass"
    while not await person.fetchval(waits):  # noqa: ASYNC110 - the server sends no event
        await asyncio.sleep(0.02)
    server.kill()
    with pytest.raises((SQLAlchemyError, asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
        await upgrading
    person.terminate()


@pytest.mark.parametrize("revision", ["0007", "9999"])
def test_a_database_of_an_unknown_revision_is_refused_and_left_alone(old_server: PostgresServer, revision: str) -> None:
    asyncio.run(_run(old_server, "create table if not exists public.alembic_version (version_num text)"))
    asyncio.run(_run(old_server, "delete from public.alembic_version"))
    asyncio.run(_run(old_server, f"insert into public.alembic_version values ('{revision}')"))
    assert pending(old_server.url)
    with pytest.raises(UnknownRevision, match=f"at revision {revision}, which this version of Holdfast cannot upgrade"):
        migrate(old_server.url, PASSWORDS)
    assert asyncio.run(_value(old_server, "select version_num from public.alembic_version")) == revision


JOBS_VIEW = "select to_regclass('historian.jobs')::oid"


@pytest.fixture
def old_server(tmp_path: Path) -> Iterator[PostgresServer]:
    """A Postgres without a schema of ours."""
    server = PostgresServer(tmp_path)
    asyncio.run(server.start())
    yield server
    server.stop()


async def upgrade_to(server: PostgresServer, revision: str) -> None:
    config = Config()
    config.set_main_option("script_location", str(migrations_directory()))
    config.set_main_option("path_separator", "os")

    def upgrade(connection: Connection) -> None:
        config.attributes["connection"] = connection
        command.upgrade(config, revision)

    engine = create_async_engine(make_url(server.url).set(drivername="postgresql+asyncpg"))
    async with engine.begin() as connection:
        await connection.run_sync(upgrade)
    await engine.dispose()


async def _value(server: PostgresServer, statement: str) -> Any:
    connection = await asyncpg.connect(server.url)
    try:
        return await connection.fetchval(statement)
    finally:
        await connection.close()


async def _run(server: PostgresServer, statement: str) -> None:
    await _value(server, statement)
