"""The contract of the store, tested on the store in memory and on a real Postgres."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial

import msgspec
import pytest
from servers import PostgresServer
from store_worlds import (
    JOBS,
    JOBS_BY_CHANGES,
    PASSWORDS,
    Job,
    MemoryWorld,
    PostgresWorld,
    World,
    loaded,
    message,
    saved,
)

from holdfast.bus import StreamPosition
from holdfast.store import Published, StaleState, Store, StoreUnavailable
from holdfast.store.message_retention import INBOX_KEPT
from holdfast.store.upgrade.migrate import migrate

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    server = PostgresServer(tmp_path_factory.mktemp("postgres"))
    asyncio.run(server.start())
    migrate(server.url, PASSWORDS)
    yield server
    server.stop()


@pytest.fixture(params=["memory", "postgres"])
def new_world(request: pytest.FixtureRequest) -> Callable[[], World]:
    if request.param == "memory":
        return MemoryWorld
    return partial(PostgresWorld, request.getfixturevalue("server"))


@pytest.fixture
async def world(new_world: Callable[[], World]) -> AsyncIterator[World]:
    world = new_world()
    if isinstance(world, PostgresWorld):
        await world.enter()
    yield world
    await world.leave()


async def test_a_message_is_handled_once(world: World) -> None:
    store = await world.store()
    async with store.transaction() as tx:
        assert await tx.first_time("m1", "s")
        assert not await tx.first_time("m1", "s")
        assert await tx.first_time("m2", "s")
    async with (await world.store()).transaction() as tx:
        assert not await tx.first_time("m1", "s")
        assert await tx.first_time("m3", "s")
        assert await tx.first_time("m1", "of another"), "an id says nothing about who published it"
        assert not await tx.first_time("m1", "of another")


async def test_a_rolled_back_transaction_leaves_nothing(world: World) -> None:
    store = await world.store()
    await saved(store, "j", Job(phase="running"))

    async def fail() -> None:
        async with store.transaction() as tx:
            assert await tx.first_time("m1", "s")
            await tx.save(JOBS, "j", Job(phase="failed"))
            await tx.save(JOBS, "k", Job(phase="new"))
            await tx.emit([message(b"1")])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert await store.pending(10) == []
    for seen_by in (store, await world.store()):
        async with seen_by.transaction() as tx:
            assert await tx.load(JOBS, "j") == Job(phase="running")
            assert await tx.load(JOBS, "k") is None
            assert await tx.load_all(JOBS) == {"j": Job(phase="running")}
    async with store.transaction() as tx:
        assert await tx.first_time("m1", "s")
        await tx.save(JOBS, "j", Job(phase="stopped"))


async def test_an_error_of_the_block_passes_as_it_is(world: World) -> None:
    store = await world.store()

    async def fail() -> None:
        async with store.transaction():
            raise OSError("mine")

    with pytest.raises(OSError, match="mine"):
        await fail()


async def test_a_cancelled_transaction_leaves_nothing_and_the_store_goes_on(world: World) -> None:
    store, inside = await world.store(), asyncio.Event()

    async def hang() -> None:
        async with store.transaction() as tx:
            await tx.first_time("m1", "s")
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(hang())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with store.transaction() as tx:
        assert await tx.first_time("m1", "s")


async def test_rows_are_written_read_and_removed(world: World) -> None:
    store = await world.store()
    async with store.transaction() as tx:
        assert await tx.load(JOBS, "j") is None
        await tx.save(JOBS, "j", Job(phase="new", notes=('quote " and \\ backslash', "ünïcode ☃")))
        await tx.save(JOBS, "j", Job(phase="newer"))
        assert await tx.load(JOBS, "j") == Job(phase="newer")
        await tx.save(JOBS, "k", Job(phase="kept", notes=('quote " and \\ backslash', "ünïcode ☃")))
        assert await tx.load_all(JOBS) == {
            "j": Job(phase="newer"),
            "k": Job(phase="kept", notes=('quote " and \\ backslash', "ünïcode ☃")),
        }
    async with store.transaction() as tx:
        await tx.delete(JOBS, "j")
        await tx.delete(JOBS, "never there")
        assert await tx.load(JOBS, "j") is None
    for seen_by in (store, await world.store()):
        async with seen_by.transaction() as tx:
            assert list(await tx.load_all(JOBS)) == ["k"]
            assert (await tx.load(JOBS, "k") or Job(phase="")).notes[1] == "ünïcode ☃"
    async with store.transaction() as tx:
        await tx.delete(JOBS, "k")
        await tx.save(JOBS, "k", Job(phase="again"))
        await tx.save(JOBS, "j", Job(phase="again"))
    assert await loaded(await world.store(), "k") == Job(phase="again")


async def test_two_writers_of_one_row_do_not_overwrite_each_other(world: World) -> None:
    one, two = await world.store(), await world.store()
    await saved(one, "j", Job(phase="a"))
    assert await loaded(two, "j") == Job(phase="a")
    await saved(two, "j", Job(phase="b"))
    with pytest.raises(StaleState, match="'j'"):
        await saved(one, "j", Job(phase="c"))
    assert await loaded(one, "j") == Job(phase="b")
    await saved(one, "j", Job(phase="c"))
    assert await loaded(await world.store(), "j") == Job(phase="c")


async def test_a_row_that_another_writer_made_or_removed_is_noticed(world: World) -> None:
    one, two = await world.store(), await world.store()
    assert await loaded(one, "j") is None
    await saved(two, "j", Job(phase="b"))
    with pytest.raises(StaleState):
        await saved(one, "j", Job(phase="a"))
    assert await loaded(one, "j") == Job(phase="b")
    async with two.transaction() as tx:
        await tx.delete(JOBS, "j")
    with pytest.raises(StaleState):
        await saved(one, "j", Job(phase="c"))
    assert await loaded(one, "j") is None


async def test_a_row_that_another_writer_changed_is_not_removed(world: World) -> None:
    one, two = await world.store(), await world.store()

    async def remove() -> None:
        async with one.transaction() as tx:
            await tx.delete(JOBS, "j")

    assert await loaded(one, "j") is None
    await saved(two, "j", Job(phase="a"))
    with pytest.raises(StaleState, match="'j'"):
        await remove()
    assert await loaded(one, "j") == Job(phase="a")
    await saved(two, "j", Job(phase="b"))
    with pytest.raises(StaleState, match="'j'"):
        await remove()
    assert await loaded(one, "j") == Job(phase="b")
    await remove()
    assert await loaded(await world.store(), "j") is None


async def _grow(store: Store, job: Job, count: int) -> Job:
    """Write `count` versions of a job, each with one node more."""
    for number in range(count):
        job = msgspec.structs.replace(job, generation=number, nodes=job.nodes | {f"node-{len(job.nodes)}"})
        async with store.transaction() as tx:
            await tx.save(JOBS_BY_CHANGES, "j", job)
    return job


async def test_a_row_stored_by_its_changes_is_read_as_it_was_written(world: World) -> None:
    job = Job(phase="running", notes=("x" * 1000,))
    await saved(await world.store(), "j", job)  # whole, as earlier versions wrote each row
    for _ in range(3):
        store = await world.store()
        async with store.transaction() as tx:
            assert await tx.load_all(JOBS_BY_CHANGES) == {"j": job}
        job = await _grow(store, job, 15)
        async with (await world.store()).transaction() as tx:
            assert await tx.load(JOBS_BY_CHANGES, "j") == job


async def test_changes_of_a_transaction_that_fails_are_not_kept(world: World) -> None:
    store = await world.store()
    job = await _grow(store, Job(phase="running", notes=("x" * 1000,)), 5)

    async def fail() -> None:
        async with store.transaction() as tx:
            await tx.save(JOBS_BY_CHANGES, "j", msgspec.structs.replace(job, nodes=job.nodes | {"never"}))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    async with store.transaction() as tx:
        assert await tx.load(JOBS_BY_CHANGES, "j") == job
        await tx.save(JOBS_BY_CHANGES, "j", msgspec.structs.replace(job, nodes=job.nodes | {"later"}))
    async with (await world.store()).transaction() as tx:
        assert (await tx.load_all(JOBS_BY_CHANGES))["j"].nodes == {*job.nodes, "later"}


async def test_a_change_to_a_row_that_another_wrote_is_refused(world: World) -> None:
    store, other = await world.store(), await world.store()
    job = await _grow(store, Job(phase="running", notes=("x" * 1000,)), 3)
    async with other.transaction() as tx:
        assert await tx.load(JOBS_BY_CHANGES, "j") == job
    later = await _grow(other, job, 2)
    with pytest.raises(StaleState):
        await _grow(store, job, 1)
    async with store.transaction() as tx:
        assert await tx.load(JOBS_BY_CHANGES, "j") == later


async def test_no_change_outlives_its_row(world: World) -> None:
    store = await world.store()
    await _grow(store, Job(phase="running", notes=("x" * 1000,)), 5)
    async with store.transaction() as tx:
        await tx.delete(JOBS_BY_CHANGES, "j")
        await tx.save(JOBS_BY_CHANGES, "j", Job(phase="new"))
    async with (await world.store()).transaction() as tx:
        assert await tx.load(JOBS_BY_CHANGES, "j") == Job(phase="new")


async def test_a_record_that_is_only_written_is_overwritten(world: World) -> None:
    records = msgspec.structs.replace(JOBS, is_only_written=True)
    one, two = await world.store(), await world.store()
    for store, phase in ((one, "a"), (two, "b"), (one, "c")):
        async with store.transaction() as tx:
            await tx.save(records, "j", Job(phase=phase))
    assert await loaded(await world.store(), "j") == Job(phase="c")


async def test_a_row_that_was_never_looked_at_is_overwritten(world: World) -> None:
    await saved(await world.store(), "j", Job(phase="a"))
    store = await world.store()
    await saved(store, "j", Job(phase="b"))
    await saved(store, "j", Job(phase="c"))
    assert await loaded(await world.store(), "j") == Job(phase="c")


async def test_reading_all_rows_sees_what_another_writer_did(world: World) -> None:
    one, two = await world.store(), await world.store()
    await saved(one, "j", Job(phase="a"))
    await saved(one, "k", Job(phase="a"))
    async with two.transaction() as tx:
        await tx.load_all(JOBS)
        await tx.save(JOBS, "j", Job(phase="b"))
        await tx.delete(JOBS, "k")
    async with one.transaction() as tx:
        assert await tx.load_all(JOBS) == {"j": Job(phase="b")}
        await tx.save(JOBS, "j", Job(phase="c"))
    assert await loaded(one, "k") is None


async def test_the_outbox_keeps_what_was_said_in_order(world: World) -> None:
    store = await world.store()
    said = [message(bytes([number, 0, 255])) for number in range(6)]
    for part in (said[:3], [], said[3:]):
        async with store.transaction() as tx:
            await tx.emit(part)
    pending = await store.pending(4)
    assert [item for _, item in pending] == said[:4]
    await store.published(dict.fromkeys(position for position, _ in pending[:2]))
    assert [item for _, item in await (await world.store()).pending(10)] == said[2:]
    await store.published(dict.fromkeys(position for position, _ in await store.pending(10)))
    assert await store.pending(10) == []


async def test_a_message_that_the_bus_need_not_keep_goes_when_it_is_published(world: World) -> None:
    """Orders carry secrets of jobs."""
    store = await world.store()
    async with store.transaction() as tx:
        await tx.emit([message(b"order"), message(b"event"), message(b"next order")])
    (order, _), (event, _) = await store.pending(2)
    await store.published({order: None, event: StreamPosition("DECISIONS", 1)})
    assert await world.outbox() == [b"event", b"next order"]
    assert [item.body for _, item in await store.pending(10)] == [b"next order"]


async def test_published_messages_can_be_pending_again(world: World) -> None:
    store = await world.store()
    said = [message(b"%d" % number) for number in range(6)]
    async with store.transaction() as tx:
        await tx.emit(said)
    places = [StreamPosition("DECISIONS", number) for number in (3, 4, 8, 9)]
    positions = [position for position, _ in await store.pending(5)]
    # An order has no place, and the last message is not published.
    await store.published(dict(zip(positions, [*places, None], strict=True)))
    ids = [item.id for item in said]
    published = [Published(place, id_) for place, id_ in zip(places, ids, strict=False)]
    assert await store.newest_published() == published[-1:]
    assert await store.published_in("DECISIONS") == published
    assert await store.published_in("EVIDENCE") == []
    assert await store.publish_again(StreamPosition("DECISIONS", 4)) == 3
    assert [item.id for _, item in await store.pending(10)] == [ids[1], ids[2], ids[3], ids[5]]
    assert await store.newest_published() == published[:1]


async def test_the_store_comes_back_after_the_database_was_away(world: World) -> None:
    store = await world.store()
    await saved(store, "j", Job(phase="a"))

    async def lose_the_database() -> None:
        async with store.transaction() as tx:
            await tx.first_time("m1", "s")
            await tx.save(JOBS, "j", Job(phase="b"))
            await tx.emit([message(b"1")])
            await world.kill()

    with pytest.raises(StoreUnavailable):
        await lose_the_database()
    with pytest.raises(StoreUnavailable):
        await loaded(store, "j")
    for ask in (store.pending(1), store.published({1: None}), store.prune(datetime.now(UTC))):
        with pytest.raises(StoreUnavailable):
            await ask
    await world.revive()
    async with store.transaction() as tx:
        assert await tx.first_time("m1", "s")
        assert await tx.load(JOBS, "j") == Job(phase="a")
        await tx.save(JOBS, "j", Job(phase="c"))
    assert await store.pending(10) == []


async def test_what_is_old_is_forgotten(world: World) -> None:
    store, now = await world.store(), datetime.now(UTC)
    async with store.transaction() as tx:
        await tx.first_time("m1", "s")
        await tx.emit([message(b"1"), message(b"2")])
    ((position, _),) = await store.pending(1)
    await store.published({position: StreamPosition("DECISIONS", 1)})
    assert await store.forgotten_before() is None
    await store.prune(now)
    assert await world.outbox() == [b"1", b"2"]
    await store.prune(now + timedelta(days=6))
    assert await world.outbox() == [b"2"]
    async with store.transaction() as tx:
        assert not await tx.first_time("m1", "s")
    await store.prune(now + timedelta(days=8))
    # That clock was ahead: what comes from now on is not forgotten, whatever was deleted.
    mark = await (await world.store()).forgotten_before()
    assert mark is not None and now <= mark <= datetime.now(UTC)
    async with store.transaction() as tx:
        assert await tx.first_time("m1", "s")
    await store.prune(datetime.now(UTC) + INBOX_KEPT - timedelta(seconds=1))
    assert await (await world.store()).forgotten_before() == mark
    assert [item.body for _, item in await store.pending(10)] == [b"2"]


async def test_transactions_at_once_do_not_mix(world: World) -> None:
    store = await world.store()

    async def handle(number: int) -> bool:
        async with store.transaction() as tx:
            first = await tx.first_time(f"m{number // 2}", "s")
            if first:
                await tx.emit([message(b"%d" % (number // 2))])
            return first

    firsts = await asyncio.gather(*(handle(number) for number in range(20)))
    assert sum(firsts) == 10
    assert sorted(int(item.body) for _, item in await store.pending(100)) == list(range(10))
