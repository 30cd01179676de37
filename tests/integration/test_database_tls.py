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
        await asyncio.to_thread(_commands, server.url(), ours, tmp_path)


def _commands(url: str, authority: Authority, directory: Path) -> None:
    """Migrate, read and back up as an operator does."""
    passwords = directory / "passwords"
    passwords.mkdir()
    for role in ROLES:
        (passwords / role).write_text("for-tests")

    def holdfast(*words: str) -> str:
        environment = {"HOLDFAST_NETWORK_TLS_CA": str(authority.file), "HOLDFAST_CONFIG": "/dev/null"}
        done = CliRunner().invoke(main, words, env=environment)
        assert done.exit_code == 0, done.output
        return done.output

    holdfast("migrate", "--database-url", url, "--passwords", str(passwords))
    reader = url.replace(f"postgres:{quote(PASSWORD)}@", "holdfast_reader:for-tests@")
    assert "holdfast_reader" in holdfast("sql", "select current_user", "--database-url", reader)
    holdfast("backup", str(directory / "backup"), "--database-url", url)
    assert (directory / "backup").stat().st_size > 10_000


async def test_a_certificate_that_has_ended_is_refused(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with running(tmp_path / "postgres", authority.certified("postgres", ["127.0.0.1"], days=-1)) as server:
        with pytest.raises(StoreUnavailable, match="certificate has expired"):
            await _connect(server.url(), authority.trusting)


async def test_a_server_without_tls_is_no_substitute(tmp_path: Path, embedded_postgres: str) -> None:
    with pytest.raises(StoreUnavailable, match="rejected SSL upgrade"):
        await _connect(f"{embedded_postgres}?sslmode=verify-full", Authority(tmp_path).trusting)
