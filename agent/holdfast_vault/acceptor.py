"""A listening socket with a thread for each connection. A failure of one connection does not stop the others."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable

import structlog

RETRY_S = 0.1

log = structlog.get_logger(__name__)


class Acceptor:
    def __init__(self, listening: socket.socket) -> None:
        self._listening = listening
        self._closed = threading.Event()

    def run(self, attend: Callable[[socket.socket], None]) -> None:
        """Accept connections, and run `attend`, which closes the connection, on a new thread for each."""
        reported = ""
        while True:
            try:
                link, _ = self._listening.accept()
            except OSError as error:
                # Closed; or short of descriptors for a moment.
                reason = str(error)
            else:
                reason = _begun(attend, link)
            if reason and self._closed.wait(RETRY_S):
                return
            if reason and reason != reported:
                log.warning("a connection is not served", reason=reason)
            reported = reason

    def close(self) -> None:
        self._closed.set()
        # A close alone would leave `accept` waiting.
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()


def _begun(attend: Callable[[socket.socket], None], link: socket.socket) -> str:
    """Start the thread; return the reason if it cannot be started."""
    try:
        threading.Thread(target=attend, args=(link,), daemon=True).start()
    except RuntimeError as error:
        link.close()
        return str(error)
    return ""
