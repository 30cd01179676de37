"""Behaviour that needs a real Postgres: text that it refuses, lost backends, set-up mistakes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import asyncpg
import msgspec
import pytest
from servers import PostgresServer
from store_worlds import JOBS, JOBS_BY_CHANGES, PASSWORDS, Job, PostgresWorld, loaded, message, saved

from holdfast.bus import Message
from holdfast.store import DatabaseReplaced, StaleState, StoreUnavailable, Table
from holdfast.store.connections import Connection, NotMigrated
from holdfast.store.passwords import end_sessions, set_passwords
from holdfast.store.postgres import PostgresStore
from holdfast.store.upgrade.migrate import migrate

pytestmark = pytest.mark.integration


@pytest.fixture
async def world(postgres: PostgresServer) -> AsyncIterator[PostgresWorld]:
    world = PostgresWorld(postgres)
    await world.enter()
    yield world
    await world.leave()


@pytest.mark.parametrize("text", ["a\x00b\x00\x00c", "\\u0000", "\\\x00", "\\\\\x00\\u0000", "\x00"])
async def test_nul_is_replaced_and_nothing_else(world: PostgresWorld, text: str) -> None:
    store = await world.store()
    await saved(store, "j", Job(phase=text, notes=(text,)))
    readable = text.replace("\x00", "\N{REPLACEMENT CHARACTER}")
    assert await loaded(await world.store(), "j") == Job(phase=readable, notes=(readable,))


async def test_projected_columns_follow_the_row(world: PostgresWorld) -> None:
    store = await world.store()
    await saved(store, "j", Job(phase="a", generation=1))
    await saved(store, "j", Job(phase="b", generation=2))
    admin = await asyncpg.connect(world.server.url)
    row = await admin.fetchrow("select key, version, phase, generation, body->>'phase' as body from controller.jobs")
    await admin.close()
    assert tuple(row) == ("j", 2, "b", 2, "b")


async def test_rows_that_are_gone_or_only_written_are_not_remembered(world: PostgresWorld) -> None:
    store = await world.store()
    records = msgspec.structs.replace(JOBS, is_only_written=True)
    await saved(store, "kept", Job(phase="a"))
    await saved(store, "gone", Job(phase="a"))
    async with store.transaction() as tx:
        await tx.save(records, "record", Job(phase="a"))
        await tx.delete(JOBS, "gone")
        await tx.delete(JOBS, "kept")
        await tx.save(JOBS, "kept", Job(phase="b"))
    assert set(store._cache) == {("jobs", "kept")}


async def test_changes_are_written_in_place_of_the_whole_until_they_are_larger(world: PostgresWorld) -> None:
    store = await world.store()
    job = Job(phase="running", notes=("x" * 1000,))
    admin = await asyncpg.connect(world.server.url)
    sizes, changes = set(), []
    for number in range(100):
        job = msgspec.structs.replace(job, generation=number, nodes=job.nodes | {f"node-{number}"})
        async with store.transaction() as tx:
            await tx.save(JOBS_BY_CHANGES, "j", job)
        row = await admin.fetchrow("select version, generation, length(body::text) from controller.jobs")
        assert tuple(row)[:2] == (number + 1, number), "what people query is always that of the newest version"
        sizes.add(row[2])
        changes.append(await admin.fetchval("select count(*) from controller.job_changes"))
    async with store.transaction() as tx:
        await tx.delete(JOBS_BY_CHANGES, "j")
    assert await admin.fetchval("select count(*) from controller.job_changes") == 0, "no change outlives its row"
    await admin.close()
    assert 2 <= len(sizes) <= 8, "the row was written whole a few times"
    assert 5 < max(changes) < 40, "and what changed since was forgotten then"


async def test_a_killed_backend_is_replaced(world: PostgresWorld) -> None:
    store = await world.store()
    await saved(store, "j", Job(phase="a"))
    await store.pending(1)
    admin = await asyncpg.connect(world.server.url)
    killed = await admin.fetch(
        "select pg_terminate_backend(pid) from pg_stat_activity where application_name ~ '^test'"
    )
    assert len(killed) >= 2
    await admin.close()
    async with asyncio.timeout(30):
        while True:
            try:
                assert await loaded(store, "j") == Job(phase="a")
                assert await store.pending(1) == []
            except StoreUnavailable:
                continue
            break


async def test_a_renewed_password_is_read_where_the_address_lies(world: PostgresWorld) -> None:
    role, passwords = "holdfast_controller", dict(PASSWORDS)
    store = await world.store(lambda: world.server.url_of(role, passwords[role]))
    stranger = await world.store(world.server.url_of(role, "guessed"))
    await saved(store, "j", Job(phase="a"))
    try:
        await set_passwords(world.server.url, {role: "renewed"})
        assert await loaded(store, "j") == Job(phase="a"), "an open session goes on"
        await end_sessions(world.server.url, [role])
        # Refused, since the process has not been given the new one; it was let in before and asks again.
        refusal = ""
        async with asyncio.timeout(30):
            while "password authentication failed" not in refusal:
                try:
                    await loaded(store, "j")
                except StoreUnavailable as error:
                    refusal = str(error)
        with pytest.raises(NotMigrated, match="password authentication failed"):
            await loaded(stranger, "j")
        passwords[role] = "renewed"
        assert await loaded(store, "j") == Job(phase="a")
    finally:
        await set_passwords(world.server.url, {role: PASSWORDS[role]})


@pytest.mark.parametrize("password", ["a'b\\c %$: d", "größer"])
async def test_any_password_opens_the_database(world: PostgresWorld, password: str) -> None:
    role = "holdfast_reader"
    try:
        await set_passwords(world.server.url, {role: password})
        await (await asyncpg.connect(world.server.url_of(role, password))).close()
        with pytest.raises(asyncpg.InvalidPasswordError):
            await asyncpg.connect(world.server.url_of(role, f"{password}x"))
    finally:
        await set_passwords(world.server.url, {role: PASSWORDS[role]})


async def test_a_swallowed_error_is_not_taken_for_a_commit(world: PostgresWorld) -> None:
    one, two = await world.store(), await world.store()
    await loaded(one, "j")
    await saved(two, "j", Job(phase="a"))
    incomplete = Table(name="jobs", row_type=Job, columns=lambda job: {"phase": None})

    async def swallow(table: Table[Job], error: type[Exception]) -> None:
        async with one.transaction() as tx:
            await tx.first_time("m1", "s")
            with pytest.raises(error):
                await tx.save(table, "j", Job(phase="b"))

    for table, error in ((JOBS, StaleState), (incomplete, asyncpg.NotNullViolationError)):
        with pytest.raises(RuntimeError, match="swallowed"):
            await swallow(table, error)
        assert await loaded(one, "j") == Job(phase="a")
    async with one.transaction() as tx:
        assert await tx.first_time("m1", "s")


async def test_a_stale_row_rolls_back_what_was_said(world: PostgresWorld) -> None:
    one, two = await world.store(), await world.store()
    await saved(one, "j", Job(phase="a"))
    await loaded(two, "j")
    await saved(one, "j", Job(phase="b"))

    async def write() -> None:
        async with two.transaction() as tx:
            await tx.first_time("m1", "s")
            await tx.emit([message(b"1")])
            await tx.save(JOBS, "j", Job(phase="c"))

    with pytest.raises(StaleState):
        await write()
    assert await two.pending(10) == []
    assert await loaded(two, "j") == Job(phase="b")
    await write()
    assert len(await two.pending(10)) == 1


@pytest.mark.parametrize(
    ("role", "password", "schema"),
    [
        ("holdfast_controller", "wrong", "controller"),
        ("holdfast_controller", PASSWORDS["holdfast_controller"], "nowhere"),
        ("holdfast_analyzer", PASSWORDS["holdfast_analyzer"], "controller"),
    ],
)
async def test_mistakes_of_the_set_up_are_named(
    postgres: PostgresServer, role: str, password: str, schema: str
) -> None:
    store = await PostgresStore.connect(postgres.url_of(role, password), schema, application_name="test")
    with pytest.raises(NotMigrated, match="holdfast migrate"):
        await store.pending(1)
    with pytest.raises(NotMigrated, match="holdfast migrate"):
        await loaded(store, "j")
    await store.close()


async def test_a_store_can_be_made_before_its_database_is_there(world: PostgresWorld) -> None:
    await world.kill()
    store = await world.store()
    with pytest.raises(StoreUnavailable):
        await store.pending(1)
    await world.revive()
    assert await store.pending(1) == []


async def test_a_new_server_after_the_loss_of_the_old_one_is_noticed(world: PostgresWorld, tmp_path: Path) -> None:
    """Its database may have the same number: the first one that anybody makes on a server."""
    role = "holdfast_controller"
    other = PostgresServer(tmp_path)
    await other.start()
    try:
        await asyncio.to_thread(migrate, other.url, PASSWORDS)
        at = [world.server]
        store = await world.store(lambda: at[0].url_of(role, PASSWORDS[role]))
        await saved(store, "j", Job(phase="a"))
        at[0] = other
        await world.kill()
        with pytest.raises(StoreUnavailable):
            await loaded(store, "j")
        with pytest.raises(DatabaseReplaced):
            await loaded(store, "j")
    finally:
        other.stop()
        await world.revive()


async def test_what_was_emitted_is_published_without_being_read_back(world: PostgresWorld) -> None:
    store, other = await world.store(), await world.store()
    headers = {"why": "a\x00b"}
    emitted = [msgspec.structs.replace(message(b"%d" % number), headers=headers) for number in range(4)]

    async def emit(messages: list[Message]) -> None:
        async with store.transaction() as tx:
            for one in messages:
                await tx.emit([one])

    assert await store.pending(10) == []
    statements: list[str] = []
    read = store._relay.one

    def counted() -> AbstractAsyncContextManager[Connection]:
        statements.append("")
        return read()

    store._relay.one = counted  # type: ignore[method-assign]
    await emit(emitted[:3])
    known = await store.pending(10)
    assert not statements
    assert known == await other.pending(10), "as they are in the database"
    await store.published({known[0][0]: None})
    await emit(emitted[3:])
    assert [(await store.pending(2))[0], *(await store.pending(10))[1:]] == await (await world.store()).pending(10)
    assert len(statements) == 1
    await world.kill()
    with pytest.raises(StoreUnavailable):
        await store.published({known[1][0]: None})
    with pytest.raises(StoreUnavailable):
        await store.pending(10)
    await world.revive()
    assert len(await store.pending(10)) == 3
