"""The port on which other vaults ask: whoever shows that he belongs to the job is served, each on a thread."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import structlog

from holdfast.vault_socket import listen_to_peers
from holdfast.vault_wire import VaultWireError
from holdfast_agent.vault.handshake import admit
from holdfast_agent.vault.peer_wire import Hello, set_limits

STRANGERS_MAX = 32
PEERS_MAX = 256
RETRY_S = 0.1

log = structlog.get_logger(__name__)


class PeerServer:
    """`token_of` gives the token of the job that somebody says he belongs to; `serve` answers him until he ends."""

    def __init__(
        self,
        directory: Path,
        address: str,
        token_of: Callable[[Hello], str | None],
        serve: Callable[[socket.socket, Hello], None],
    ) -> None:
        self._token_of = token_of
        self._serve = serve
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._strangers: set[socket.socket] = set()
        self._peers: dict[socket.socket, Hello] = {}
        self._listening = listen_to_peers(directory, address)

    def run(self) -> None:
        """Accept until `close`."""
        while True:
            try:
                link, (host, *_) = self._listening.accept()
            except OSError:
                # Closed; or short of descriptors for a moment, which is no reason to serve nobody any more.
                if self._closed.wait(RETRY_S):
                    return
                continue
            with self._lock:
                has_room = len(self._strangers) < STRANGERS_MAX and len(self._peers) < PEERS_MAX
                if has_room:
                    self._strangers.add(link)
            if has_room:
                threading.Thread(target=self._attend, args=(link, host), daemon=True).start()
            else:
                log.warning("a connection is turned away, there are too many", host=host)
                link.close()

    def end_unknown(self, is_known: Callable[[Hello], bool]) -> None:
        """End the connections of those whose job this node does not serve any more."""
        with self._lock:
            for link, hello in self._peers.items():
                if not is_known(hello):
                    _end(link)

    def close(self) -> None:
        """Stop serving."""
        self._closed.set()
        _end(self._listening)
        self._listening.close()
        with self._lock:
            for link in (*self._strangers, *self._peers):
                _end(link)

    def _attend(self, link: socket.socket, host: str) -> None:
        node = "?"
        try:
            hello = admit(link, self._token_of)
            node = hello.node
            with self._lock:
                self._strangers.discard(link)
                self._peers[link] = hello
            # Asked once more: the job may have gone since, and the connections of those who belong to it with it.
            if self._token_of(hello):
                set_limits(link)
                self._serve(link, hello)
        except (VaultWireError, OSError) as error:
            log.info("a connection of another vault ended", host=host, node=node, reason=str(error))
        finally:
            with self._lock:
                self._strangers.discard(link)
                self._peers.pop(link, None)
            link.close()


def _end(link: socket.socket) -> None:
    with contextlib.suppress(OSError):
        link.shutdown(socket.SHUT_RDWR)
