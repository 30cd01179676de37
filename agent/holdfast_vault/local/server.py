"""The local sockets of a vault, for the ranks and the agent of its node. A vault without clients ends after a while."""

from __future__ import annotations

import os
import signal
import socket
import threading
from pathlib import Path

from holdfast.node.vault.vault_socket import remove_own
from holdfast_vault.acceptor import Acceptor
from holdfast_vault.local.session import LocalSession
from holdfast_vault.node_vault import NodeVault


class LocalServer:
    """Serves the ranks and the agent of a node; starts the service for other vaults beside it."""

    def __init__(
        self,
        directory: Path,
        listening: socket.socket,
        node: NodeVault,
        *,
        orphan_s: float,
        copy_threads: int = 1,
    ) -> None:
        """`orphan_s`: seconds without any agent or rank after which the vault ends."""
        self._directory = directory
        self._node = node
        self._orphan_s = orphan_s
        self._copy_threads = copy_threads
        self._lock = threading.Lock()
        self._served = 0
        self._lonely: threading.Timer | None = None
        self._acceptor = Acceptor(listening)

    def serve(self) -> None:
        """Serve each connection on a thread, until `close`."""
        threading.Thread(target=self._node.peers.run, daemon=True).start()
        # No client is connected yet, and perhaps none ever connects: the time until the vault ends begins here.
        self._count(0)
        self._acceptor.run(self._attend)

    def _attend(self, link: socket.socket) -> None:
        self._count(+1)
        try:
            LocalSession(link, self._node, self._copy_threads).run()
        finally:
            self._count(-1)

    def _count(self, change: int) -> None:
        """Count the connected clients. If none is left for `orphan_s`, end the vault, as SIGTERM from outside does."""
        with self._lock:
            self._served += change
            if self._lonely is not None:
                self._lonely.cancel()
                self._lonely = None
            if not self._served:
                self._lonely = threading.Timer(self._orphan_s, os.kill, (os.getpid(), signal.SIGTERM))
                self._lonely.daemon = True
                self._lonely.start()

    def close(self) -> None:
        remove_own(self._directory)
        self._acceptor.close()
        with self._lock:
            if self._lonely is not None:
                self._lonely.cancel()
        self._node.close()
