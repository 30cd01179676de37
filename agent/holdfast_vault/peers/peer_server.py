"""The port for other vaults: each connection that proves that it belongs to the job is served on its own thread."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import structlog

from holdfast.node.frames import WireError
from holdfast.node.vault.vault_socket import listen_to_peers
from holdfast_vault.acceptor import Acceptor
from holdfast_vault.peers.handshake import admit
from holdfast_vault.peers.peer_link import set_limits
from holdfast_vault.peers.peer_messages import Hello

STRANGERS_MAX = 32
PEERS_MAX = 256

log = structlog.get_logger(__name__)


class PeerServer:
    """Connections of other vaults. `token_of` gives the token of a greeting's job; `serve` answers an admitted peer."""

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
        self._strangers: dict[socket.socket, None] = {}
        self._peers: dict[socket.socket, Hello] = {}
        self._acceptor = Acceptor(listen_to_peers(directory, address))

    def run(self) -> None:
        self._acceptor.run(self._attend)

    def end_unknown(self, is_known: Callable[[Hello], bool]) -> None:
        """End the connections of those whose job this node does not serve any more."""
        with self._lock:
            for link, hello in self._peers.items():
                if not is_known(hello):
                    _end(link)

    def close(self) -> None:
        self._acceptor.close()
        with self._lock:
            for link in (*self._strangers, *self._peers):
                _end(link)

    def _attend(self, link: socket.socket) -> None:
        who = "?"
        try:
            who = link.getpeername()[0]
            self._let_in(link)
            hello = admit(link, self._token_of)
            who = f"{hello.node} at {who}"
            self._know(link, hello)
            # Asked once more: the job may have gone since, and the connections of those who belong to it with it.
            if self._token_of(hello):
                set_limits(link)
                self._serve(link, hello)
        except (WireError, OSError) as error:
            log.info("a connection of another vault ended", of=who, reason=str(error))
        finally:
            with self._lock:
                self._strangers.pop(link, None)
                self._peers.pop(link, None)
            link.close()

    def _let_in(self, link: socket.socket) -> None:
        """Register a connection that has not proved itself. If there are too many, the oldest one is closed."""
        with self._lock:
            self._strangers[link] = None
            if len(self._strangers) > STRANGERS_MAX:
                oldest = next(iter(self._strangers))
                del self._strangers[oldest]
                _end(oldest)

    def _know(self, link: socket.socket, hello: Hello) -> None:
        with self._lock:
            if len(self._peers) >= PEERS_MAX:
                raise WireError(f"there are {PEERS_MAX} others")
            self._strangers.pop(link, None)
            self._peers[link] = hello


def _end(link: socket.socket) -> None:
    with contextlib.suppress(OSError):
        link.shutdown(socket.SHUT_RDWR)
