"""The trust between vaults: by TLS with certificates; without certificates in plain text, on loopback only."""

from __future__ import annotations

import os
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import structlog

from holdfast.network.refusals import Refusals
from holdfast.network.tls import TlsFilesRefused, client_context, server_context
from holdfast.network.trust import is_loopback
from holdfast.settings.network import NetworkPolicy
from holdfast_vault.peers.tls_link import NotTrusted, Shown, TlsLink, shown

CURE = (
    "set tls_ca, tls_cert and tls_key in [network] of the agents, or allow plain text between vaults with "
    "plain_text = true"
)

log = structlog.get_logger(__name__)

_Stamp = tuple[tuple[int, int, int], ...]


class PeerTrust:
    """The settings `[network]` as vaults follow them. Changed files are read again with the next connection."""

    def __init__(self, network: NetworkPolicy | None = None) -> None:
        self._network = network or NetworkPolicy()
        self._lock = threading.Lock()
        self._refusals: Refusals | None = None
        self._refused_text: str | None = None
        self._problem = ""
        self._contexts: dict[Callable[[NetworkPolicy], ssl.SSLContext], tuple[_Stamp, ssl.SSLContext]] = {}

    @property
    def is_tls(self) -> bool:
        return bool(self._network.tls_ca and self._network.tls_cert)

    def why_not(self, address: str) -> str:
        """Return why nothing may be sent to or taken at an IP address; "" if it may."""
        if self.is_tls or self._network.plain_text or is_loopback(address):
            return ""
        return f"{address} is not on loopback, and without certificates vaults talk on loopback only: {CURE}"

    def require(self, link: socket.socket) -> None:
        """Raise NotTrusted if a connection may not be used."""
        if reason := self.why_not(link.getpeername()[0]):
            raise NotTrusted(reason)

    def identify(self, link: socket.socket, node: str) -> Shown:
        """Return what the other side has shown, after the handshake of TLS. Raises NotTrusted: it may not be this node,
        or is refused.
        """
        found = shown(link, node)
        if reason := self.why_refused(found):
            raise NotTrusted(reason)
        return found

    @property
    def can_refuse(self) -> bool:
        return bool(self._network.tls_refused)

    def why_refused(self, found: Shown) -> str:
        """Return why this other side is refused now; "" if it is not."""
        if not self.can_refuse:
            return ""
        refusals = self._read_refusals()
        if refusals is None:
            return f"{self._network.tls_refused} (tls_refused) cannot be used, so any node may be a revoked one"
        return refusals.why(found.names, found.made_at)

    def _read_refusals(self) -> Refusals | None:
        """Return the refusals that the file has, or had when it could last be read; None if it never could."""
        problem = ""
        try:
            text = Path(self._network.tls_refused).read_text()
            if text != self._refused_text:
                self._refusals, self._refused_text = Refusals.parse(text), text
        except (OSError, ValueError) as error:
            problem = str(error)
        if problem and problem != self._problem:
            log.error("refused nodes cannot be read", file=self._network.tls_refused, reason=problem)
        self._problem = problem
        return self._refusals

    def called(self, link: socket.socket) -> socket.socket:
        """Return the connection for the side that opened it, before the handshake. Raises NotTrusted."""
        return self._wrapped(link, _client_context) if self.is_tls else link

    def accepted(self, link: socket.socket) -> socket.socket:
        """Return the connection for the side that was called, before the handshake. Raises NotTrusted."""
        return self._wrapped(link, _server_context) if self.is_tls else link

    def _wrapped(self, link: socket.socket, make: Callable[[NetworkPolicy], ssl.SSLContext]) -> socket.socket:
        context = self._context(make)
        return context.wrap_socket(link, server_side=make is _server_context, do_handshake_on_connect=False)

    def _context(self, make: Callable[[NetworkPolicy], ssl.SSLContext]) -> ssl.SSLContext:
        with self._lock:
            stamp, (before, context) = self._stamp(), self._contexts.get(make, (None, None))
            if context is not None and before == stamp:
                return context
            try:
                context = make(self._network)
            except TlsFilesRefused as error:
                if context is None:
                    raise NotTrusted(f"this node's certificate cannot be used: {error}") from error
                # They are being replaced, or were replaced by something else.
                log.warning("the certificate before is used on", reason=str(error))
            self._contexts[make] = stamp, context
            return context

    def _stamp(self) -> _Stamp:
        stamps = []
        for path in (self._network.tls_ca, self._network.tls_cert, self._network.tls_key):
            with suppress(OSError):
                found = os.stat(path)
                stamps.append((found.st_ino, found.st_mtime_ns, found.st_size))
        return tuple(stamps)


def _client_context(network: NetworkPolicy) -> ssl.SSLContext:
    context = client_context(network)
    # Certificates name nodes, and `identify` compares them; a host name would be another question.
    context.check_hostname = False
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.sslsocket_class = TlsLink
    return context


def _server_context(network: NetworkPolicy) -> ssl.SSLContext:
    context = server_context(network)
    # A ticket would wake the other side, which has nothing to read then.
    context.num_tickets = 0
    context.sslsocket_class = TlsLink
    return context
