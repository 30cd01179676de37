"""TLS to a real Postgres that takes nothing else: which servers are trusted, and by which parts of Holdfast."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import quote

import asyncpg
import pytest
from certificate_files import Authority
from click.testing import CliRunner
from servers import PASSWORD, Server

from holdfast.cli.main import main
from holdfast.embedded.processes.children import ChildSpec
from holdfast.embedded.servers.identity import Identity, choose_identity
from holdfast.network.guard import addresses_of
from holdfast.network.trust import AddressRefused, private_database
from holdfast.settings.network import NetworkPolicy
from holdfast.store import StoreUnavailable
from holdfast.store.connections import Connections

pytestmark = pytest.mark.integration

ROLES = ("controller", "analyzer", "standby", "ckpt", "historian", "reader")


def _programs() -> Path:
    """Return the programs of a Postgres that was built with OpenSSL; that of the wheel was not."""
    for directory in sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True):
        if b"libssl" in (directory / "postgres").read_bytes():
            return directory
    pytest.skip("no PostgreSQL server with TLS is installed here (/usr/lib/postgresql)")


class TlsPostgresServer(Server):
    """Postgres as an administrator installs it, with a certificate, and TLS as the only way in."""

    def __init__(self, directory: Path, own: NetworkPolicy) -> None:
        super().__init__(directory)
        self.own = own

    @property
    def port(self) -> int:
        return self.ports.postgres

    def url(self, host: str = "127.0.0.1") -> str:
        return f"postgresql://postgres:{PASSWORD}@{host}:{self.port}/postgres?sslmode=verify-full"

    def _make(self, programs: Path, identity: Identity) -> Path:
        """Make the files of the server; return their directory."""
        data, password = self.directory / "data", self.directory / "password"
        password.write_text(PASSWORD)
        identity.own(self.directory)
        flags = ["-D", str(data), "-U", "postgres", f"--pwfile={password}", "--auth=scram-sha-256", "--no-sync"]
        subprocess.run([programs / "initdb", *flags], check=True, capture_output=True, preexec_fn=identity.enter)
        (data / "pg_hba.conf").write_text("hostssl all all all scram-sha-256\n")
        for name, file in (("server.crt", self.own.tls_cert), ("server.key", self.own.tls_key)):
            (data / name).write_bytes(Path(file).read_bytes())
            (data / name).chmod(0o600)
        identity.own(self.directory)
        return data

    async def spec(self) -> ChildSpec:
        programs = _programs()
        identity = choose_identity(programs / "postgres", self.directory)
        data = self._make(programs, identity)

        async def answers() -> None:
            while True:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", self.port)
                except ConnectionRefusedError:
                    await asyncio.sleep(0.02)
                else:
                    return writer.close()

        here = ("listen_addresses=127.0.0.1", f"port={self.port}", "unix_socket_directories=")
        settings = (*here, "ssl=on", "fsync=off")
        return ChildSpec(
            name="postgres",
            argv=(str(programs / "postgres"), "-D", str(data), *(f"--{setting}" for setting in settings)),
            environment={"LC_ALL": "C"},
            directory=self.directory,
            probe=answers,
            identity=identity,
        )


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
