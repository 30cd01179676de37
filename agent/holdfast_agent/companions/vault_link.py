"""Keeps the node's vault running. It is found alive after a restart of the agent, with all that it holds."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import structlog

from holdfast.node import frames
from holdfast.node.frames import WireError
from holdfast.node.vault import messages, vault_socket
from holdfast.node.vault.messages import Assign, Follow, Notice, Refused
from holdfast.orders.backup import BackupOrder
from holdfast.settings.checkpoint import CheckpointPolicy
from holdfast_agent.companions import companion

RETRY_S = 1.0
_LOG = "vault.log"

log = structlog.get_logger(__name__)


class VaultLink:
    """One connection that tells what happens in the vault, and that it lives; what it is told goes over others."""

    def __init__(self, directory: Path, address: str, orphan_s: float, policy: CheckpointPolicy | None) -> None:
        self._policy = policy or CheckpointPolicy()
        self._directory = directory
        self._address = address
        self._orphan_s = orphan_s
        self._pid: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._assignment: Assign | None = None
        self._unassigned = asyncio.Event()
        self.on_notice: Callable[[Notice], None] = lambda notice: None
        self.on_ready: Callable[[], None] = lambda: None

    @property
    def port(self) -> int | None:
        """Where the vault answers other vaults; None while there is none."""
        return None if self._pid is None else vault_socket.port(self._directory)

    async def run(self) -> None:
        """See to it that there is a vault, until cancelled."""
        while True:
            try:
                connection = self._connect() or await self._start()
            except BlockingIOError:
                log.warning("the vault does not answer", again_in_s=RETRY_S)
                await asyncio.sleep(RETRY_S)
                continue
            if connection is None:
                log.error("the vault does not come up", log=str(self._directory / _LOG), again_in_s=RETRY_S)
                await asyncio.sleep(RETRY_S)
                continue
            self._pid = vault_socket.peer_pid(connection)
            self._unassigned.set()
            self.on_ready()
            reader, writer = await asyncio.open_unix_connection(sock=connection)
            try:
                writer.write(frames.framed(Follow()))
                while True:
                    notice = await frames.read(reader, messages.answers)
                    if isinstance(notice, Notice):
                        self.on_notice(notice)
            except WireError as error:
                log.error("the vault ended; what it held is lost", reason=str(error))
            finally:
                self._pid = None
                writer.close()

    def assign(self, order: BackupOrder, token: str) -> None:
        """Have the vault go by this order, and each vault that comes after it, until there is another."""
        self._assignment = Assign(order=order, token=token)
        self._unassigned.set()

    async def hand_over(self) -> None:
        """Bring the order to the vault whenever one of the two is new, until cancelled."""
        while True:
            await self._unassigned.wait()
            self._unassigned.clear()
            if self._assignment is None or self._pid is None:
                continue
            try:
                await self._say(self._assignment)
            except BlockingIOError:
                log.warning("the vault does not answer", again_in_s=RETRY_S)
                await asyncio.sleep(RETRY_S)
                self._unassigned.set()
            except (OSError, WireError) as error:
                # It is gone, and its successor will be told.
                log.warning("the vault did not take its backup order", reason=str(error))

    def end(self) -> None:
        """End the vault; what it holds is gone."""
        if self._pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGTERM)

    async def _say(self, assignment: Assign) -> None:
        connection = vault_socket.connect(self._directory, blocking=False)
        reader, writer = await asyncio.open_unix_connection(sock=connection)
        try:
            writer.write(frames.framed(assignment))
            answer = await frames.read(reader, messages.answers)
        finally:
            writer.close()
        if isinstance(answer, Refused):
            log.warning("the vault refused a backup order", reason=answer.reason)

    def _connect(self) -> socket.socket | None:
        try:
            return vault_socket.connect(self._directory, blocking=False)
        except (FileNotFoundError, ConnectionRefusedError):
            return None

    async def _start(self) -> socket.socket | None:
        """Start a vault and wait until it listens, or ends."""
        if self._process is not None:
            # The one before, if it was ours: nobody else collects it.
            self._process.poll()
        self._process = await companion.start(
            "holdfast_vault",
            self._directory / _LOG,
            *("--state-dir", str(self._directory)),
            *("--address", self._address),
            *("--orphan-s", str(self._orphan_s)),
            *("--copy-threads", str(self._policy.copy_threads)),
            *("--peer-bytes-per-s", str(self._policy.backup_bytes_per_s)),
            *("--memory-steps", str(self._policy.memory_steps)),
            *("--memory-bytes", str(self._policy.memory_bytes)),
            *("--persist-bytes-per-s", str(self._policy.persist_bytes_per_s)),
        )
        return self._connect()
