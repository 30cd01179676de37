"""The way of code: from a snapshot over the bus into the controller's keeping, and onto the disk of a node."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest
from code_scene import WITHIN_S, House, Place, lies, order, until
from historian_scene import new_database

from holdfast.cli.code_upload import upload
from holdfast.code.manifest import decode, encode, short
from holdfast.code.on_bus import FEW
from holdfast.code.snapshot import snapshot
from holdfast.orders.code import CodeOrder
from holdfast.requests import CODE_REQUESTS, Answer, KeepCode, OfferCode
from holdfast.subjects import CODE_BUCKET, JOBS_BUCKET
from holdfast_agent.companions.code_place import HOLDS_S, CodePlace, CodePlaces
from holdfast_agent.files import code_store
from tests.scenes.order_keys import signed

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def urls(embedded_postgres: str) -> dict[str, str]:
    return asyncio.run(new_database(embedded_postgres, "code"))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A source tree, with data beside the code."""
    root = tmp_path / "source"
    (root / "lib").mkdir(parents=True)
    (root / "train.py").write_text("import lib.model\n")
    (root / "lib" / "model.py").write_text("LAYERS = 4\n" * 1000)
    (root / "empty.py").touch()
    # The tests share a database, where code is kept by what it holds.
    (root / "lib" / "own.py").write_text(str(tmp_path))
    return root


@pytest.fixture
def house(urls: dict[str, str]) -> House:
    return House(urls["controller"])


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_store, "AHEAD_AFTER_S", 0.0)
    monkeypatch.setattr(code_store, "_RETRY_S", 0.01)


async def test_a_version_is_kept_once_whole_and_by_its_true_hash_and_outlives_the_controller(
    house: House, source: Path
) -> None:
    found = snapshot(source)
    async with house.open() as librarian:
        assert "its manifest is not on the bus" in (await house.ask(KeepCode, found.version)).message
        lost = next(iter(found.contents))
        await house.put(found, but=lost)
        assert "1 of its 4 files are missing on the bus" in (await house.ask(KeepCode, found.version)).message
        await house.person.put_objects(CODE_BUCKET, {lost: b"something else"})
        assert not (await house.ask(KeepCode, found.version)).accepted and not librarian.manifests.get(found.version)
        await house.keep(found)
        assert librarian.manifests[found.version] == found.manifest
        await house.person.put_objects(CODE_BUCKET, {"0" * 64: encode(found.manifest)})
        assert "has another digest" in (await house.ask(KeepCode, "0" * 64)).message
        unreadable = await house.person.request(CODE_REQUESTS, b"{}", WITHIN_S)
        assert "not a request" in msgspec.json.decode(unreadable, type=Answer).message
    async with house.open() as librarian:
        assert not librarian.manifests, "no job runs it"
        house.forget()
        assert (await house.ask(KeepCode, found.version)).accepted, "what is held need not come again"
        assert librarian.manifests[found.version] == found.manifest


async def test_the_bus_is_given_again_what_it_lost(house: House, source: Path, tmp_path: Path) -> None:
    found = snapshot(source)
    async with house.open():
        await house.keep(found)
    house.forget()
    async with house.open(), Place(tmp_path / "code").running(house.broker.client("agent")) as place:
        assert lies(await place.get(found)) == lies(source)
        assert place.brought[0].fetched_bytes == found.manifest.code_bytes + len(encode(found.manifest))


async def test_only_what_is_new_is_fetched_and_the_old_stays(house: House, source: Path, tmp_path: Path) -> None:
    async with house.open(), Place(tmp_path / "code").running(house.broker.client("agent")) as place:
        one = snapshot(source)
        await house.keep(one)
        first = await place.get(one)
        (source / "train.py").write_text("import lib.model as model\n")
        two = snapshot(source)
        await house.keep(two)
        second = await place.get(two)
        assert place.brought[1].fetched_bytes == 26 + len(encode(two.manifest))
        assert (first / "train.py").read_text() == "import lib.model\n" and lies(second) == lies(source)
        # Another job of the same code needs nothing of the bus.
        house.forget()
        assert lies(await place.get(two, "another")) == lies(source) and place.brought[2].fetched_bytes == 0


async def test_a_damaged_version_and_damaged_contents_are_found_and_mended(
    house: House, source: Path, tmp_path: Path
) -> None:
    found = snapshot(source)
    async with house.open():
        await house.keep(found)
        async with Place(tmp_path / "code").running(house.broker.client("agent")) as place:
            lying = await place.get(found)
        (lying / "train.py").chmod(0o644)
        (lying / "train.py").write_text("import os\n")
        for kept in (tmp_path / "code" / ".contents").iterdir():
            kept.write_text("garbage")
        # A new life of the agent trusts nothing that it did not look at.
        async with Place(tmp_path / "code").running(house.broker.client("agent")) as place:
            assert lies(await place.get(found)) == lies(source)
            assert place.brought
        async with Place(tmp_path / "code").running(house.broker.client("agent")) as place:
            await place.get(found)
            assert not place.brought, "it lies there whole"


async def test_what_cannot_be_had_is_said_with_its_cause(house: House, source: Path, tmp_path: Path) -> None:
    found = snapshot(source)
    async with Place(tmp_path / "code", give_up_s=0.05).running(house.broker.client("agent")) as place:
        place.store.order(order(found, "job"))
        await until(lambda: place.failures)
        assert "nobody answers" in place.failures[0][1]
        async with house.open():
            place.store.order(order(found, "job"))
            await until(lambda: len(place.failures) == 2)
            assert f"code version {short(found.version)}: the controller does not store it" in place.failures[1][1]
            assert place.failures[1][0] == f"job/{found.version}"
        assert not place.in_place


async def test_a_bus_that_lies_reaches_nothing(house: House, source: Path, tmp_path: Path) -> None:
    found = snapshot(source)
    await house.put(found)
    some = next(digest for digest, body in found.contents.items() if body)
    await house.person.put_objects(CODE_BUCKET, {some: b"import os; os.system('...')"})
    async with Place(tmp_path / "code", give_up_s=0.05).running(house.broker.client("agent")) as place:
        place.store.order(order(found, "job"))
        await until(lambda: place.failures)
    assert not (tmp_path / "code" / "job").exists()


async def test_nodes_fetch_ahead_what_a_job_may_need_and_forget_it_with_the_job(
    house: House, source: Path, tmp_path: Path
) -> None:
    found = snapshot(source)

    async def want(*versions: str) -> None:
        wanted = CodeOrder(job="job", versions=versions, root=str(found.root))
        await house.person.put(JOBS_BUCKET, CodeOrder.key_of("job"), signed(wanted))

    async with house.open(), Place(tmp_path / "code").running(house.broker.client("agent")) as place:
        await house.keep(found)
        await house.person.put(JOBS_BUCKET, CodeOrder.key_of("hostile"), b'{"job":"hostile","versions":["../../etc"]}')
        await want(found.version)
        await until(lambda: f"job/{found.version}" in place.in_place)
        house.forget()
        assert lies(await place.get(found)) == lies(source)
        place.store._ordered.clear()  # other jobs have been here since
        await want()
        await until(lambda: not place.in_place)
        await until(lambda: not list((tmp_path / "code" / ".contents").iterdir()))


async def test_many_files_travel_together_and_those_of_a_small_change_alone(
    house: House, source: Path, tmp_path: Path
) -> None:
    for number in range(3 * FEW):
        (source / f"part_{number}.py").write_text(f"NUMBER = {number}\n")
    on_the_bus = house.broker.objects[CODE_BUCKET]
    async with house.open(), Place(tmp_path / "code").running(house.broker.client("agent")) as place:
        one = snapshot(source)
        await upload(house.person, one)
        assert set(on_the_bus) == {one.version, f"{one.version}.0"}
        assert lies(await place.get(one)) == lies(source)
        (source / "part_0.py").write_text("NUMBER = -1\n")
        two = snapshot(source)
        await upload(house.person, two)
        (new,) = two.contents.keys() - one.contents.keys()
        assert set(on_the_bus) == {one.version, f"{one.version}.0", two.version, new}
        assert lies(await place.get(two)) == lies(source)
        assert place.brought[1].fetched_bytes == len(two.contents[new]) + len(encode(two.manifest))
        # A node that has nothing, and a bus that lost what many need: the controller puts all of it there together.
        async with Place(tmp_path / "other").running(house.broker.client("other")) as other:
            assert lies(await other.get(two)) == lies(source)
        assert f"{two.version}.0" in on_the_bus


async def test_contents_that_lie_in_the_source_tree_are_not_fetched(house: House, source: Path, tmp_path: Path) -> None:
    found = snapshot(source)
    was = lies(source)
    async with house.open(), Place(tmp_path / "code").running(house.broker.client("agent")) as place:
        await house.keep(found)
        # Edited since, replaced by what is no file, and gone.
        (source / "train.py").write_text("import os      \n")
        (source / "empty.py").unlink()
        os.mkfifo(source / "empty.py")
        (source / "lib" / "own.py").unlink()
        assert lies(await place.get(found, root=str(source))) == was
        edited = sum(len(was[path]) for path in ("train.py", "empty.py", "lib/own.py"))
        assert place.brought[0].fetched_bytes == edited + len(encode(found.manifest))


async def test_ranks_that_run_an_unchanged_tree_do_not_wait_for_its_copy(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, unpacked = threading.Event(), code_store.unpack

    def held_unpack(*args: Any, **more: Any) -> None:
        if threading.current_thread() is not threading.main_thread():
            assert held.wait(WITHIN_S)
        unpacked(*args, **more)

    monkeypatch.setattr(code_store, "unpack", held_unpack)
    # Open to all users, as pytest's directories are not.
    with tempfile.TemporaryDirectory(prefix="holdfast-tree-") as folder:
        root, state = Path(folder) / "source", Path(folder) / "code"
        Path(folder).chmod(0o755)
        root.mkdir(mode=0o755)
        (root / "train.py").write_text(f"print({folder!r})\n")
        found = snapshot(root)
        async with house.open(), Place(state).running(house.broker.client("agent")) as place:
            await house.keep(found)
            ordered = order(found, "job", str(root))
            assert ordered.placement is not None
            place.store.order(ordered)
            await until(lambda: f"job/{found.version}" in place.in_place)
            assert CodePlaces(place.store).place(ordered.placement, None) == CodePlace()
            assert not place.store.place("job", found.version).exists() and place.store._needs
            # Edited before the ranks have started: the copy is made at once, and mounted over it.
            (root / "train.py").write_text("print('edited')\n")
            cover = CodePlaces(place.store).place(ordered.placement, None).cover
            assert cover is not None and cover.files == ("train.py",)
            assert lies(Path(cover.place)) == {"train.py": f"print({folder!r})\n"}
            held.set()
            await until(lambda: not place.store._needs)
            assert place.brought and not place.failures


async def test_a_comparison_begun_while_ranks_end_is_used_once_and_for_a_moment(house: House) -> None:
    now = 0.0
    with tempfile.TemporaryDirectory(prefix="holdfast-tree-") as folder:
        Path(folder).chmod(0o755)
        root, state = Path(folder) / "source", Path(folder) / "code"
        root.mkdir(mode=0o755)
        script = root / "train.py"
        script.write_text(f"print({folder!r})\n")
        found = snapshot(root)
        async with house.open(), Place(state).running(house.broker.client("agent")) as place:
            await house.keep(found)
            await place.get(found, "job", str(root))
            placement = order(found, "job", str(root)).placement
            assert placement is not None
            places = CodePlaces(place.store, lambda: now)

            def covered() -> tuple[str, ...]:
                cover = places.place(placement, None).cover
                return cover.files if cover is not None else ()

            async def expected() -> None:
                places.expect(placement)
                assert places._begun is not None
                await asyncio.wrap_future(places._begun.differing)

            await expected()
            script.write_text("print('edited')\n")
            assert covered() == ()
            assert covered() == ("train.py",)
            await expected()
            script.write_text(f"print({folder!r})\n")
            now += HOLDS_S
            assert covered() == ()


async def test_an_order_does_not_wait_for_a_fetch_ahead_that_has_time(
    house: House, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_store, "AHEAD_AFTER_S", 3600.0)
    found = snapshot(source)
    async with house.open(), Place(tmp_path / "code").running(house.broker.client("agent")) as place:
        await house.keep(found)
        # As when a job starts: what it may need is published before the orders to its nodes.
        wanted = CodeOrder(job="job", versions=(found.version,), root=str(found.root))
        await house.person.put(JOBS_BUCKET, CodeOrder.key_of("job"), signed(wanted))
        await until(lambda: place.store._needs)
        assert lies(await place.get(found)) == lies(source)


async def test_old_versions_go_and_what_may_be_needed_stays(house: House, source: Path, tmp_path: Path) -> None:
    versions = []
    async with house.open(), Place(tmp_path / "code").running(house.broker.client("agent")) as place:
        for number in range(code_store.VERSIONS_KEPT + 5):
            (source / "train.py").write_text(f"NUMBER = {number}\n")
            versions.append(snapshot(source))
            await house.keep(versions[-1])
            await place.get(versions[-1])
            if number == 0:
                wanted = CodeOrder(job="job", versions=(versions[0].version,))
                await house.person.put(JOBS_BUCKET, CodeOrder.key_of("job"), signed(wanted))
                await until(lambda: place.store._wanted)
        await until(lambda: len(place.in_place) <= 2 * code_store.VERSIONS_KEPT + 1)
        gone = [found for found in versions if f"job/{found.version}" not in place.in_place]
        assert gone and versions[0] not in gone and versions[-1] not in gone
        await until(lambda: not [found for found in gone if (tmp_path / "code/job" / found.version).exists()])
        assert (await place.get(gone[0]) / "train.py").read_text() == gone[0].contents[
            next(entry.sha256 for entry in gone[0].manifest.entries if entry.path == "train.py")
        ].decode()


async def test_what_a_killed_agent_left_half_deleted_is_removed_and_ends_no_agent(
    house: House, source: Path, tmp_path: Path
) -> None:
    found = snapshot(source)
    left = tmp_path / "code" / "job" / f".{found.version}.gone"
    left.mkdir(parents=True)
    (left / "half.py").touch()
    async with house.open(), Place(tmp_path / "code").running(house.broker.client("agent")) as place:
        await house.keep(found)
        await place.get(found)
        place.store._ordered.clear()  # other jobs ran here since
        wanted = CodeOrder(job="job", versions=())
        for versions in ((found.version,), ()):
            wanted = msgspec.structs.replace(wanted, versions=versions)
            await house.person.put(JOBS_BUCKET, CodeOrder.key_of("job"), signed(wanted))
        await until(lambda: not place.in_place and not left.exists())


async def test_code_that_was_removed_with_its_job_is_fetched_when_the_job_begins_again(
    house: House, source: Path, tmp_path: Path
) -> None:
    found = snapshot(source)
    async with house.open(), Place(tmp_path / "code").running(house.broker.client("agent")) as place:
        await house.keep(found)
        shutil.rmtree((await place.get(found)).parent)
        place.store.forget("job")
        assert not place.in_place
        assert lies(await place.get(found)) == lies(source)


@pytest.fixture
def database(urls: dict[str, str]) -> Callable[[str], Awaitable[object]]:
    async def run(sql: str) -> object:
        connection = await asyncpg.connect(urls["admin"])
        try:
            return await connection.fetch(sql)
        finally:
            await connection.close()

    return run


async def test_code_of_forgotten_jobs_is_forgotten_and_what_others_share_is_not(
    house: House, source: Path, database: Callable[[str], Awaitable[list[asyncpg.Record]]]
) -> None:
    async with house.open() as librarian:
        one = snapshot(source)
        await house.keep(one)
        (source / "train.py").write_text("import lib.model as model\n")
        two = snapshot(source)
        await house.keep(two)
        await librarian.tidy()
        assert (await house.ask(OfferCode, one.version)).accepted, "kept within a day: a job may be on its way"
        await database("update controller.code_manifests set kept_at = now() - interval '2 days'")
        await database("update controller.code_contents set kept_at = now() - interval '2 days'")
        await database(
            "insert into controller.jobs (key, version, body, phase, generation, submitted_at) "
            "values ('j', 1, '{}', 'running', 1, now())"
        )
        await database(
            "insert into controller.code_versions (key, version, body, job, code, number, verdict, created_at) "
            f"values ('j/2', 1, '{{}}', 'j', '{two.version}', 2, 'good', now())"
        )
        await librarian.tidy()
        librarian._stored_at.clear()  # that was an hour ago
        await librarian.tidy()
        assert librarian.manifests.keys() == {two.version}
        rows = await database("select sha256, content from controller.code_contents")
        assert {row["sha256"] for row in rows} == {two.version, *two.contents}
        assert decode(next(bytes(row["content"]) for row in rows if row["sha256"] == two.version)) == two.manifest
        house.forget()
        librarian._offered.clear()  # and so was this
        assert (await house.ask(OfferCode, two.version)).accepted
        assert not (await house.ask(OfferCode, one.version)).accepted
    shutil.rmtree(source)
