"""TLS to a real Postgres that takes nothing else: which servers are trusted, and by which parts of Holdfast."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import quote

import asyncpg
import pytest
from certificate_files import Authority
from click.testing import CliRunner
from servers import PASSWORD
from tls_postgres import TlsPostgresServer

from holdfast.cli.main import main
from holdfast.network.guard import addresses_of
from holdfast.network.trust import AddressRefused, private_database
from holdfast.settings.network import NetworkPolicy
from holdfast.store import StoreUnavailable
from holdfast.store.connections import Connections

pytestmark = pytest.mark.integration

ROLES = ("controller", "analyzer", "standby", "ckpt", "historian", "reader")


@asynccontextmanager
async def running(directory: Path, own: NetworkPolicy) -> AsyncIterator[TlsPostgresServer]:
    server = TlsPostgresServer(directory, own)
    await server.start()
    try:
        yield server
    finally:
        server.stop()


async def _connect(url: str, network: NetworkPolicy) -> bool:
    """Connect as a service does. Returns True if the connection is encrypted."""
    connections = await Connections.prepare(private_database(url, network, addresses_of), "test", most=1)
    try:
        async with connections.one() as connection:
            return bool(await connection.fetchval("select ssl from pg_stat_ssl where pid = pg_backend_pid()"))
    finally:
        await connections.close()


async def test_only_the_server_that_the_authority_vouches_for_is_trusted(tmp_path: Path) -> None:
    ours, theirs = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs")
    async with running(tmp_path / "postgres", ours.certified("postgres", ["127.0.0.1"])) as server:
        assert await _connect(server.url(), ours.trusting)
        with pytest.raises(StoreUnavailable, match=r"Postgres is refused: its certificate fails .* tls_ca must name"):
            await _connect(server.url(), theirs.trusting)
        with pytest.raises(StoreUnavailable, match="Hostname mismatch, certificate is not valid for 'localhost'"):
            await _connect(server.url("localhost"), ours.trusting)
        with pytest.raises(AddressRefused, match="no authority is named"):
            await _connect(server.url(), NetworkPolicy())
        # The server refuses what is not encrypted, so the tests above prove that TLS was used.
        with pytest.raises(asyncpg.InvalidAuthorizationSpecificationError, match="no encryption"):
            await asyncpg.connect(server.url().replace("verify-full", "disable"))
        operator = Operator(server, ours, tmp_path / "passwords")
        await operator.migrate()
        assert "holdfast_reader" in await operator.reads("select current_user")
        await operator.run("backup", str(backup := tmp_path / "backup"))
        assert backup.stat().st_size > 10_000
        # With the database under the name that every server has.
        await operator.run("restore", "--yes", str(backup))
        assert "postgres_before_" in await operator.reads("select string_agg(datname, ' ') from pg_database")
        assert "holdfast_reader" in await operator.reads("select current_user")


async def test_a_backup_is_restored_on_a_new_server_after_the_loss_of_the_old_one(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    certified, backup = authority.certified("postgres", ["127.0.0.1"]), tmp_path / "backup"
    async with running(tmp_path / "old", certified) as server:
        operator = Operator(server, authority, tmp_path / "passwords", "holdfast")
        await operator.make_database()
        await operator.migrate()
        await operator.writes("insert into standby.inbox (id) values ('of before')")
        await operator.run("backup", str(backup))
    async with running(tmp_path / "new", certified) as server:
        operator = Operator(server, authority, tmp_path / "passwords-now", "holdfast")
        refused = await operator.run("restore", "--yes", str(backup), fails=True)
        assert "the server has no database holdfast" in refused and "`holdfast migrate`" in refused
        await operator.make_database()
        await operator.migrate("others")
        await operator.run("restore", "--yes", str(backup))
        assert "of before" in await operator.reads("select id from standby.inbox")
        assert "no" in await operator.reads("select has_database_privilege('public', current_database(), 'connect')")


class Operator:
    """The commands of an operator, on a database of this server."""

    def __init__(
        self, server: TlsPostgresServer, authority: Authority, passwords: Path, database: str = "postgres"
    ) -> None:
        self._url = server.url().replace("/postgres?", f"/{database}?")
        self._any_url = server.url().replace("verify-full", "require")
        self._database = database
        self._authority = authority
        self._passwords = passwords

    async def run(self, *words: str, url: str = "", fails: bool = False) -> str:
        """Run `holdfast WORDS` on the database; return its output."""
        environment = {"HOLDFAST_NETWORK_TLS_CA": str(self._authority.file), "HOLDFAST_CONFIG": "/dev/null"}
        command = [*words, "--database-url", url or self._url]
        done = await asyncio.to_thread(CliRunner().invoke, main, command, env=environment)
        assert (done.exit_code != 0) == fails, done.output
        return done.output

    async def make_database(self) -> None:
        await self._execute(self._any_url, f"create database {self._database}")

    async def migrate(self, password: str = "for-tests") -> None:
        self._passwords.mkdir()
        for role in ROLES:
            (self._passwords / role).write_text(password)
        await self.run("migrate", "--passwords", str(self._passwords))

    async def reads(self, query: str) -> str:
        """Return what the reader is shown."""
        password = (self._passwords / "reader").read_text()
        reader = self._url.replace(f"postgres:{quote(PASSWORD)}@", f"holdfast_reader:{password}@")
        return await self.run("sql", query, url=reader)

    async def writes(self, statement: str) -> None:
        await self._execute(self._url.replace("verify-full", "require"), statement)

    async def _execute(self, url: str, statement: str) -> None:
        connection = await asyncpg.connect(url)
        await connection.execute(statement)
        await connection.close()


async def test_a_certificate_that_has_ended_is_refused_until_the_server_reads_a_new_one(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with running(tmp_path / "postgres", authority.certified("postgres", ["127.0.0.1"], days=-1)) as server:
        with pytest.raises(StoreUnavailable, match="certificate has expired"):
            await _connect(server.url(), authority.trusting)
        server.replace_certificate(authority.certified("postgres", ["127.0.0.1"]))
        async with asyncio.timeout(20):
            # It sends no event for it.
            while not await _is_trusted(server.url(), authority.trusting):  # noqa: ASYNC110
                await asyncio.sleep(0.02)


async def _is_trusted(url: str, network: NetworkPolicy) -> bool:
    try:
        return await _connect(url, network)
    except StoreUnavailable:
        return False


async def test_a_server_without_tls_is_no_substitute(tmp_path: Path, embedded_postgres: str) -> None:
    with pytest.raises(StoreUnavailable, match="rejected SSL upgrade"):
        await _connect(f"{embedded_postgres}?sslmode=verify-full", Authority(tmp_path).trusting)
