"""The vault: the process of a node that holds checkpoints in memory. It outlives ranks, their zygote and the agent."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from pathlib import Path

import structlog

from holdfast.vault_socket import listen
from holdfast.vault_wire import ShardName
from holdfast_agent.vault.segments import Contents, Shelf
from holdfast_agent.vault.session import Session

log = structlog.get_logger(__name__)


class Vault:
    """All shards of one node, and the socket on which its ranks ask."""

    def __init__(self, directory: Path, *, orphan_s: float, copy_threads: int = 1) -> None:
        """`orphan_s`: without any agent or rank for this long, nobody will come back for what is here."""
        self._orphan_s = orphan_s
        self._copy_threads = copy_threads
        self._shelves: dict[ShardName, Shelf] = {}
        self._lock = threading.Lock()
        self._served = 0
        self._lonely: threading.Timer | None = None
        self._socket = listen(directory)

    def serve(self) -> None:
        """Serve agent and ranks, each on a thread, until `close`."""
        while True:
            try:
                link, _ = self._socket.accept()
            except OSError:
                return
            self._count(+1)
            threading.Thread(target=self._attend, args=(link,), daemon=True).start()

    def _attend(self, link: socket.socket) -> None:
        try:
            Session(link, self._shelf_of, self._sealed, self._copy_threads).run()
        finally:
            self._count(-1)

    def _count(self, change: int) -> None:
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
        """Stop serving and give all memory back."""
        # A close alone would leave `accept` waiting.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        with self._lock:
            if self._lonely is not None:
                self._lonely.cancel()
            for shelf in self._shelves.values():
                with shelf.turn:
                    shelf.close()
            self._shelves.clear()

    def _shelf_of(self, name: ShardName) -> Shelf:
        with self._lock:
            if name not in self._shelves:
                self._forget_other_jobs(name)
                self._shelves[name] = Shelf(f"holdfast-{name.job}-{name.rank}")
            return self._shelves[name]

    def _forget_other_jobs(self, name: ShardName) -> None:
        """A node serves one job at a time: the memory of the one before is needed now."""
        for other, shelf in list(self._shelves.items()):
            if (other.job, other.submitted_ms, other.world_size) != (name.job, name.submitted_ms, name.world_size):
                del self._shelves[other]
                with shelf.turn:
                    shelf.close()

    def _sealed(self, name: ShardName, contents: Contents) -> None:
        log.debug("sealed", job=name.job, rank=name.rank, step=contents.sealed.step)
