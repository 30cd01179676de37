"""The port for other vaults: each connection that proves that it belongs to the job is served on its own thread."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import structlog

from holdfast.node.frames import WireError
from holdfast.node.vault.vault_socket import forget_port, listen_to_peers
from holdfast_vault.acceptor import Acceptor
from holdfast_vault.peers.handshake import admit
from holdfast_vault.peers.peer_link import set_limits
from holdfast_vault.peers.peer_messages import Hello
from holdfast_vault.peers.tls_link import Shown
from holdfast_vault.peers.trust import PeerTrust

STRANGERS_MAX = 32
PEERS_MAX = 256
REPORT_STRANGERS_S = 1.0
REFUSALS_READ_S = 1.0

log = structlog.get_logger(__name__)


class PeerServer:
    """Connections of other vaults. `token_of` gives the token of a greeting's job; `serve` answers an admitted peer."""

    def __init__(
        self,
        directory: Path,
        address: str,
        token_of: Callable[[Hello], str | None],
        serve: Callable[[socket.socket, Hello], None],
        trust: PeerTrust,
        listening: socket.socket | None = None,
    ) -> None:
        """`listening` is the socket to accept connections on; None: the server opens one."""
        self._token_of = token_of
        self._serve = serve
        self._trust = trust
        self._lock = threading.Lock()
        self._strangers: dict[socket.socket, str] = {}
        self._peers: dict[socket.socket, tuple[Hello, Shown]] = {}
        self._closed = threading.Event()
        self._strangers_reported_at = -REPORT_STRANGERS_S
        self._unreported = 0
        listening = listening or listen_to_peers(directory, address)
        self._acceptor: Acceptor | None = Acceptor(listening)
        if reason := trust.why_not(listening.getsockname()[0]):
            log.error("this node keeps no copies of others and sends none", reason=reason)
            listening.close()
            forget_port(directory)
            self._acceptor = None

    def run(self) -> None:
        """Serve until `close`; return at once if other nodes may not be served at this address."""
        if self._acceptor is None:
            return
        if self._trust.can_refuse:
            threading.Thread(target=self._end_refused, daemon=True).start()
        self._acceptor.run(self._attend)

    def end_unknown(self, is_known: Callable[[Hello], bool]) -> None:
        """End the connections of those whose job this node does not serve any more."""
        with self._lock:
            for link, (hello, _) in self._peers.items():
                if not is_known(hello):
                    _end(link)

    def _end_refused(self) -> None:
        """End the connections of nodes that are refused since."""
        while not self._closed.wait(REFUSALS_READ_S):
            with self._lock:
                peers = list(self._peers.items())
            for link, (hello, found) in peers:
                if reason := self._trust.why_refused(found):
                    log.warning("a connection of another vault is ended", of=hello.node, reason=reason)
                    _end(link)

    def close(self) -> None:
        self._closed.set()
        if self._acceptor is not None:
            self._acceptor.close()
        with self._lock:
            for link in (*self._strangers, *self._peers):
                _end(link)

    def _attend(self, link: socket.socket) -> None:
        who, is_known = "?", False
        try:
            who = link.getpeername()[0]
            link = self._trust.accepted(link)
            self._let_in(link, who)
            hello, found = admit(link, self._token_of, self._trust.identify)
            who, is_known = f"{hello.node} at {who}", True
            self._know(link, hello, found)
            # Asked once more: the job may have gone since, and the connections of those who belong to it with it.
            if self._token_of(hello):
                set_limits(link)
                self._serve(link, hello)
        except (WireError, OSError) as error:
            self._report(who, str(error), is_known)
        finally:
            with self._lock:
                self._strangers.pop(link, None)
                self._peers.pop(link, None)
            link.close()

    def _report(self, who: str, reason: str, is_known: bool) -> None:
        """Log the end of a connection; strangers cannot fill the log."""
        with self._lock:
            now = time.monotonic()
            if not is_known and now < self._strangers_reported_at + REPORT_STRANGERS_S:
                self._unreported += 1
                return
            others, self._unreported = self._unreported, 0
            if not is_known:
                self._strangers_reported_at = now
        log.info("a connection of another vault ended", of=who, reason=reason, strangers_before=others)

    def _let_in(self, link: socket.socket, source: str) -> None:
        """Register a connection that has not proved itself. If there are too many, the oldest one of the address with
        the most is closed: one that floods this port closes its own.
        """
        with self._lock:
            self._strangers[link] = source
            if len(self._strangers) > STRANGERS_MAX:
                [(loudest, _)] = Counter(self._strangers.values()).most_common(1)
                oldest = next(each for each, of in self._strangers.items() if of == loudest)
                del self._strangers[oldest]
                _end(oldest)

    def _know(self, link: socket.socket, hello: Hello, found: Shown) -> None:
        with self._lock:
            if len(self._peers) >= PEERS_MAX:
                raise WireError(f"there are {PEERS_MAX} others")
            self._strangers.pop(link, None)
            self._peers[link] = hello, found


def _end(link: socket.socket) -> None:
    with contextlib.suppress(OSError):
        link.shutdown(socket.SHUT_RDWR)
