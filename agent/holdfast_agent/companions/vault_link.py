"""Supervision of the node's vault. An agent that restarts finds the vault alive with all its contents."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import structlog

from holdfast.node import frames
from holdfast.node.frames import WireError
from holdfast.node.users.user_rights import RunAs
from holdfast.node.vault import messages, vault_socket
from holdfast.node.vault.messages import Assign, End, Follow, Notice, Refused, Serve
from holdfast.orders.backup import BackupOrder
from holdfast.settings.checkpoint import CheckpointPolicy
from holdfast.settings.network import NetworkPolicy
from holdfast_agent.companions import companion

RETRY_S = 1.0
SETTLES_WITHIN_S = 10.0
"""A vault takes less than a second to start, on a busy machine a few. A node does not wait for one that never does."""
_LOG = "vault.log"

log = structlog.get_logger(__name__)


class VaultLink:
    """Connection that carries the vault's notices and shows that it lives; orders go over connections of their own."""

    def __init__(
        self,
        directory: Path,
        address: str,
        orphan_s: float,
        policy: CheckpointPolicy | None,
        run_as: RunAs | None = None,
        network: NetworkPolicy | None = None,
    ) -> None:
        self._run_as = run_as or RunAs()
        self._network = network or NetworkPolicy()
        self._policy = policy or CheckpointPolicy()
        self._directory = directory
        self._address = address
        self._orphan_s = orphan_s
        self._is_up = False
        self.has_settled = False
        """True once the vault has come up since the agent began, or has failed to in time."""
        self._process: subprocess.Popen[bytes] | None = None
        self._assignment: Assign | None = None
        self._serves: Serve | None = None
        self._taken: dict[type[Assign | Serve], Assign | Serve] = {}
        """Orders that the present vault has taken."""
        self._unassigned = asyncio.Event()
        self.on_notice: Callable[[Notice], None] = lambda notice: None
        self.on_ready: Callable[[], None] = lambda: None
        """Called when the vault is up, and when it did not come up at first."""
        self.on_lost: Callable[[], None] = lambda: None
        """Called when the vault has ended without a successor."""

    @property
    def port(self) -> int | None:
        """The port for other vaults; None while no vault runs."""
        return vault_socket.port(self._directory) if self._is_up else None

    async def run(self) -> None:
        has_been_up = False
        asyncio.get_running_loop().call_later(SETTLES_WITHIN_S, self._give_up_waiting)
        while True:
            try:
                connection = self._connect()
                if connection is None:
                    if has_been_up:
                        self.on_lost()
                    has_been_up = False
                    connection = await self._start()
            except BlockingIOError:
                log.warning("the vault does not answer", again_in_s=RETRY_S)
                self._give_up_waiting()
                await asyncio.sleep(RETRY_S)
                continue
            if connection is None:
                log.error("the vault does not come up", log=str(self._directory / _LOG), again_in_s=RETRY_S)
                self._give_up_waiting()
                await asyncio.sleep(RETRY_S)
                continue
            self._is_up = has_been_up = self.has_settled = True
            self._taken = {}
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
                log.error("the vault ended; its successor has what it held, if there is one", reason=str(error))
            finally:
                self._is_up = False
                writer.close()
                self._reap()

    def _give_up_waiting(self) -> None:
        if not self.has_settled:
            self.has_settled = True
            self.on_ready()

    def assign(self, order: BackupOrder, token: str) -> None:
        """Give this order to the vault, and to every vault started later, until the next order."""
        self._assignment = Assign(order=order, token=token)
        self._unassigned.set()

    def serve(self, job: Serve) -> None:
        """Have the vault serve ranks of this job only."""
        self._serves = job
        self._unassigned.set()

    async def hand_over(self) -> None:
        """Hand over the orders whenever one of them or the vault is new, until cancelled."""
        while True:
            await self._unassigned.wait()
            self._unassigned.clear()
            if not self._is_up:
                continue
            taken = self._taken
            for order in (self._serves, self._assignment):
                if order is None or taken.get(type(order)) == order:
                    continue
                try:
                    if await self._send(order):
                        taken[type(order)] = order
                except BlockingIOError:
                    log.warning("the vault does not answer", again_in_s=RETRY_S)
                    await asyncio.sleep(RETRY_S)
                    self._unassigned.set()
                except (OSError, WireError) as error:
                    # The vault ended; its successor gets the order.
                    log.warning("the vault did not take an order", order=type(order).__name__, reason=str(error))

    def end(self) -> None:
        """End the vault and lose its contents."""
        with contextlib.suppress(OSError, WireError), vault_socket.connect(self._directory, blocking=False) as link:
            frames.send(link, End())

    async def _send(self, order: Assign | Serve) -> bool:
        """Return whether the vault took it."""
        connection = vault_socket.connect(self._directory, blocking=False)
        reader, writer = await asyncio.open_unix_connection(sock=connection)
        try:
            writer.write(frames.framed(order))
            answer = await frames.read(reader, messages.answers)
        finally:
            writer.close()
        if isinstance(answer, Refused):
            log.warning("the vault refused an order", order=type(order).__name__, reason=answer.reason)
        return not isinstance(answer, Refused)

    def _connect(self) -> socket.socket | None:
        try:
            return vault_socket.connect(self._directory, blocking=False)
        except (FileNotFoundError, ConnectionRefusedError):
            return None

    def _reap(self) -> None:
        """Reap the process that this agent started, if it has ended; its successors are not this agent's children."""
        if self._process is not None:
            self._process.poll()

    async def _start(self) -> socket.socket | None:
        self._reap()
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
            *("--tls-ca", self._network.tls_ca),
            *("--tls-cert", self._network.tls_cert),
            *("--tls-key", self._network.tls_key),
            *("--tls-refused", self._network.tls_refused),
            *(("--plain-text",) if self._network.plain_text else ()),
            *(() if self._run_as.user is None else ("--ranks-user", self._run_as.user.name)),
            *(() if self._run_as.ids is None else ("--ranks-group", str(self._run_as.ids.passage))),
        )
        return self._connect()
