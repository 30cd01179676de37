"""Connections between vaults with TLS 1.3, on which both sides show a certificate that names their node."""

from __future__ import annotations

import select
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, NamedTuple

from holdfast.node.frames import WireError

PIECE_BYTES = 1 << 18
"""Bytes that are sent before the time limit of a stall begins again."""
KEY_BYTES_MAX = 1 << 38
"""Bytes that one key encrypts: AES-GCM should be used for 2^24.5 records at most (RFC 8446, §5.5)."""


_HANDSHAKE = b"\x16"
"""First byte of a connection with TLS."""

_ENDED = "the connection ended in the handshake of TLS: the other vault is gone, or has no certificate"
_NAMES = ("DNS", "IP Address")
"""Entries of a certificate that may name a node."""


class NotTrusted(WireError):
    """The two vaults may not talk: a certificate is missing or refused, or plain text is not allowed."""


class TlsLink(ssl.SSLSocket):
    """A socket like any other. Its descriptor must not be written to directly: that would be plain text."""

    sent_bytes = 0

    def send(self, data: Any, flags: int = 0) -> int:
        """Send a piece of the data."""
        count = super().send(memoryview(data)[:PIECE_BYTES], flags)
        self.sent_bytes += count
        return count

    def recv_into(self, buffer: Any, nbytes: int | None = None, flags: int = 0) -> int:
        """Receive what one record has; MSG_WAITALL is a wish."""
        return super().recv_into(buffer, nbytes or len(buffer), flags & ~socket.MSG_WAITALL)

    def recvmsg(  # type: ignore[override]
        self, bufsize: int, ancbufsize: int = 0, flags: int = 0
    ) -> tuple[bytes, list[Any], int, Any]:
        """Receive data; there are no descriptors beside it."""
        return self.recv(bufsize, flags), [], 0, None

    def shutdown(self, how: int) -> None:
        """End the connection. The inherited method would go on without TLS."""
        socket.socket.shutdown(self, how)


def is_readable(link: socket.socket, timeout_s: float | None = 0.0) -> bool:
    """Return True if there is something to receive, or the connection has ended; None waits for either."""
    if isinstance(link, TlsLink) and link.pending():
        return True
    poll = select.poll()
    poll.register(link, select.POLLIN)
    return bool(poll.poll(None if timeout_s is None else timeout_s * 1000))


def needs_new_keys(link: socket.socket) -> bool:
    """Return True if the connection has sent enough bytes to be replaced (limits of TLS keys)."""
    return isinstance(link, TlsLink) and link.sent_bytes >= KEY_BYTES_MAX


class Shown(NamedTuple):
    """The certificate of the other side of a connection: its names, and when it was made."""

    names: tuple[str, ...]
    made_at: datetime | None
    """None without a certificate."""


def shown(link: socket.socket, node: str) -> Shown:
    """Return what was shown for a node; on a plain connection its name. Raises NotTrusted if it is not named."""
    if not isinstance(link, TlsLink):
        return Shown((node,), None)
    certificate: dict[str, Any] = link.getpeercert() or {}
    names = tuple(str(entry[1]) for entry in certificate.get("subjectAltName", ()) if entry[0] in _NAMES)
    if node not in names:
        raise NotTrusted(f"the certificate shown for node {node} names {', '.join(names) or 'nothing'}")
    return Shown(names, datetime.fromtimestamp(ssl.cert_time_to_seconds(certificate["notBefore"]), UTC))


def shake_hands(link: socket.socket) -> None:
    """Run the handshake of TLS, if the connection has it. Raises NotTrusted: one side does not accept the other;
    WireError: the connection ended.
    """
    if not isinstance(link, TlsLink):
        return
    try:
        link.do_handshake()
    except ssl.SSLCertVerificationError as error:
        raise NotTrusted(f"the certificate of the other node is refused: {error.verify_message}") from error
    except (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError) as error:
        raise WireError(_ENDED) from error
    except ssl.SSLError as error:
        raise NotTrusted(f"no handshake of TLS: {error.reason or error}") from error
    except OSError as error:
        raise WireError(f"{_ENDED} ({error.strerror or error})") from error


def speaks_tls(link: socket.socket) -> bool:
    """Return False if the other side of a connection that should have TLS has sent something else first."""
    if not isinstance(link, TlsLink):
        return True
    return socket.socket.recv(link, 1, socket.MSG_PEEK) in (_HANDSHAKE, b"")


def turn_away_plain(link: socket.socket, answer: bytes) -> None:
    """Answer a side that does not speak TLS, in plain text."""
    with suppress(OSError):
        socket.socket.sendall(link, answer)
        drain(link)


def drain(link: socket.socket) -> None:
    """Receive until the other side ends the connection: if this side did, its last words could be lost."""
    with suppress(OSError):
        link.shutdown(socket.SHUT_WR)
        while socket.socket.recv(link, PIECE_BYTES):
            pass


@contextmanager
def alerts_understood() -> Iterator[None]:
    """Raise NotTrusted in place of WireError for an alert: with TLS 1.3 it may come after this side's handshake."""
    try:
        yield
    except WireError as error:
        cause = error.__cause__
        if isinstance(cause, ssl.SSLError) and "ALERT" in (cause.reason or ""):
            raise NotTrusted(f"the other node refuses the certificate of this one: {cause.reason}") from cause
        raise
