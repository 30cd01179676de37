"""A Postgres with TLS, as an administrator installs it; that of the wheel has none."""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
from pathlib import Path

import asyncpg
import pytest
from servers import PASSWORD, Server

from holdfast.embedded.processes.children import ChildSpec
from holdfast.embedded.servers.identity import Identity, choose_identity
from holdfast.settings.network import NetworkPolicy

RULES = Path(__file__).parents[2] / "deploy" / "pg_hba.conf"
"""Who is let in, and how: as in compose, over the network with TLS only."""


def programs_with_tls() -> Path | None:
    """Return the programs of a Postgres that was built with OpenSSL; that of the wheel was not."""
    for directory in sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True):
        if (directory / "postgres").exists() and b"libssl" in (directory / "postgres").read_bytes():
            return directory
    return None


class TlsPostgresServer(Server):
    """Postgres as an administrator installs it, with a certificate, and TLS as the only way in."""

    def __init__(self, directory: Path, own: NetworkPolicy) -> None:
        super().__init__(directory)
        self.own = own

    @property
    def port(self) -> int:
        return self.ports.postgres

    def url(self, host: str = "127.0.0.1") -> str:
        """The database as its administrator sees it."""
        return f"postgresql://postgres:{PASSWORD}@{host}:{self.port}/postgres?sslmode=verify-full"

    def replace_certificate(self, own: NetworkPolicy) -> None:
        """Give the running server another certificate."""
        for name, file in (("server.crt", own.tls_cert), ("server.key", own.tls_key)):
            (self.directory / "data" / name).write_bytes(Path(file).read_bytes())
        assert self.process is not None
        self.process.send_signal(signal.SIGHUP)

    def _make(self, programs: Path, identity: Identity) -> Path:
        """Make the files of the server; return their directory."""
        data, password = self.directory / "data", self.directory / "password"
        password.write_text(PASSWORD)
        identity.own(self.directory)
        flags = ["-D", str(data), "-U", "postgres", f"--pwfile={password}", "--auth=scram-sha-256", "--no-sync"]
        subprocess.run([programs / "initdb", *flags], check=True, capture_output=True, preexec_fn=identity.enter)
        shutil.copy(RULES, data / "pg_hba.conf")
        for name, file in (("server.crt", self.own.tls_cert), ("server.key", self.own.tls_key)):
            (data / name).write_bytes(Path(file).read_bytes())
            (data / name).chmod(0o600)
        identity.own(self.directory)
        return data

    async def spec(self) -> ChildSpec:
        programs = programs_with_tls()
        if programs is None:
            pytest.skip("no PostgreSQL server with TLS is installed here (/usr/lib/postgresql)")
        identity = choose_identity(programs / "postgres", self.directory)
        data = self._make(programs, identity)

        async def answers() -> None:
            while True:
                try:
                    # This mode encrypts and trusts any server.
                    connection = await asyncpg.connect(self.url().replace("verify-full", "prefer"))
                except (OSError, asyncpg.CannotConnectNowError):
                    await asyncio.sleep(0.02)
                else:
                    return await connection.close()

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
