"""Keeps the node's vault running. It is found alive after a restart of the agent, with all that it holds."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from pathlib import Path

import structlog

from holdfast import vault_socket
from holdfast_agent import companion

RETRY_S = 1.0
_LOG = "vault.log"

log = structlog.get_logger(__name__)


class VaultLink:
    """A connection to the vault that says nothing: while it stands, the vault lives."""

    def __init__(self, directory: Path, orphan_s: float) -> None:
        self._directory = directory
        self._orphan_s = orphan_s
        self._pid: int | None = None
        self.ready = asyncio.Event()

    async def run(self) -> None:
        """See to it that there is a vault, until cancelled."""
        while True:
            connection = self._connect() or await self._start()
            if connection is None:
                log.error("the vault does not come up", log=str(self._directory / _LOG), again_in_s=RETRY_S)
                await asyncio.sleep(RETRY_S)
                continue
            self._pid = vault_socket.peer_pid(connection)
            self.ready.set()
            reader, writer = await asyncio.open_unix_connection(sock=connection)
            try:
                await reader.read()
            finally:
                self._pid = None
                writer.close()
            log.error("the vault ended; what it held is lost")

    def end(self) -> None:
        """End the vault; what it holds is gone."""
        if self._pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGTERM)

    def _connect(self) -> socket.socket | None:
        try:
            connection = vault_socket.connect(self._directory)
        except (FileNotFoundError, ConnectionRefusedError):
            return None
        connection.setblocking(False)
        return connection

    async def _start(self) -> socket.socket | None:
        """Start a vault and wait until it listens, or ends."""
        orphan_s = ("--orphan-s", str(self._orphan_s))
        state_dir = ("--state-dir", str(self._directory))
        await companion.start("holdfast_agent.vault", self._directory / _LOG, *state_dir, *orphan_s)
        return self._connect()
