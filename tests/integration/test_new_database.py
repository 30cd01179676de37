"""A new cluster's database: made once, and copied for the clusters that come after."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import pytest

from holdfast.embedded.database import Database
from holdfast.embedded.layout import ClusterLayout
from holdfast.embedded.processes.children import Child, ChildSpec
from holdfast.embedded.servers.access import Access
from holdfast.embedded.servers.credentials import HOST
from holdfast.embedded.servers.database_image import CACHE_VARIABLE
from holdfast.embedded.servers.ports import reserve_ports

pytestmark = pytest.mark.integration


class Migrations:
    """Stands for the migrations: makes the roles and a table."""

    def __init__(self) -> None:
        self.runs = 0

    def __call__(self, admin_url: str, roles: dict[str, str]) -> None:
        async def run() -> None:
            connection = await asyncpg.connect(admin_url)
            if not await connection.fetchval("select to_regclass('made')"):
                for name in ("controller", "analyzer", "standby", "ckpt", "historian", "reader"):
                    await connection.execute(f"create role holdfast_{name} login")
                await connection.execute("create table made as select 1 as one")
            await connection.close()

        self.runs += 1
        asyncio.run(run())


@asynccontextmanager
async def started(root: Path, migrations: Migrations, made_by: str) -> AsyncIterator[Access]:
    """A database in this directory, running."""
    layout = ClusterLayout(root)
    layout.create()
    with reserve_ports({"postgres": None, "nats": None}, None) as ports:
        access = Access(layout, ["node-0"], ports, HOST, renew=False)
        database = Database(layout, access, ports, migrations, made_by, durable=False)
        children: list[Child] = []
        async with asyncio.TaskGroup() as tasks:

            async def bring_up(spec: ChildSpec) -> Child:
                child = Child(spec, layout.log(spec.name), lambda child, line: None)
                children.append(child)
                running.append(tasks.create_task(child.run()))
                child.switch_on()
                await child.until_ready()
                return child

            running: list[asyncio.Task[None]] = []
            try:
                await database.start(bring_up)
                yield access
            finally:
                for child in children:
                    await child.stop()
                for task in running:
                    task.cancel()


async def test_a_new_database_is_copied_from_an_image_with_passwords_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, migrations = tmp_path / "cache", Migrations()
    monkeypatch.setenv(CACHE_VARIABLE, str(cache))
    async with started(tmp_path / "first", migrations, "these migrations") as first:
        assert await asyncpg.connect(first.database_urls["admin"])
    (image,) = (cache / "holdfast" / "databases").iterdir()
    password = (image / "password").read_text()
    async with started(tmp_path / "second", migrations, "these migrations") as second:
        assert migrations.runs == 1, "the copy has what they make"
        urls = second.database_urls
        for who in ("admin", "controller", "reader"):
            connection = await asyncpg.connect(urls[who])
            if who == "admin":
                assert await connection.fetchval("select one from made") == 1
            await connection.close()
        assert first.credentials.postgres != second.credentials.postgres and not second.credentials.postgres_before
        for wrong in (password, first.credentials.postgres):
            with pytest.raises(asyncpg.InvalidPasswordError):
                await asyncpg.connect(urls["admin"].replace(second.credentials.postgres, wrong))
    async with started(tmp_path / "second", migrations, "these migrations"):
        assert migrations.runs == 2, "an old database is brought up to date at each start"
    # A cache may be tidied by others: what is left of the image is not used, and it is made again.
    (image / "data" / "global" / "pg_control").unlink()
    async with started(tmp_path / "mended", migrations, "these migrations"):
        assert migrations.runs == 3 and (image / "data" / "global" / "pg_control").exists()
    # Who else can write there could bring a database of theirs.
    image.chmod(0o777)
    async with started(tmp_path / "third", migrations, "these migrations"):
        assert migrations.runs == 4


async def test_no_image_is_kept_where_none_can_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    migrations = Migrations()
    (tmp_path / "cache").touch()
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    async with started(tmp_path / "cluster", migrations, "these migrations") as access:
        await (await asyncpg.connect(access.database_urls["reader"])).close()
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "empty"))
    async with started(tmp_path / "other", migrations, "") as access:
        await (await asyncpg.connect(access.database_urls["admin"])).close()
    assert not (tmp_path / "empty").exists()
