"""Connections to the vaults of other nodes, opened from here."""

from __future__ import annotations

import socket
import struct

from holdfast.node.frames import WireError, lost, receive, send
from holdfast.node.vault.messages import Refused
from holdfast.orders.backup import VaultAddress
from holdfast_vault.assignments import Assignment
from holdfast_vault.peers import handshake
from holdfast_vault.peers.peer_messages import Ask, Reply, replies
from holdfast_vault.peers.tls_link import TlsLink, alerts_understood, shake_hands

CONNECT_S = 2.0
STALL_S = 30.0
"""A peer that stops for this long in the middle of a message counts as gone."""


class NoPeerVault(WireError):
    """No vault runs at the address: the shards that it held are lost."""


class PeerRefused(WireError):
    """The other vault cannot do what was asked; the message is its reason, and the connection stays usable."""


def dial(address: VaultAddress, assignment: Assignment, stall_s: float = STALL_S) -> socket.socket:
    """Open a connection on which both sides have proved that they belong to the job. Raises NotAdmitted: one does not,
    or the other does not know the job yet; NotTrusted: certificates are missing or wrong; NoPeerVault: no vault
    listens; WireError: no answer, or the connection ended.
    """
    order = assignment.order
    try:
        link = socket.create_connection((address.host, address.port), timeout=CONNECT_S)
    except ConnectionRefusedError as error:
        raise NoPeerVault("no vault runs there") from error
    except OSError as error:
        raise lost(error) from error
    try:
        assignment.trust.require(link)
        link = assignment.trust.called(link)
        with handshake.deadline(link), alerts_understood():
            link.settimeout(handshake.HANDSHAKE_S)
            shake_hands(link)
            assignment.trust.identify(link, address.node)
            handshake.greet(link, order.node, order.job, order.submitted_ms, order.generation, assignment.token)
        set_limits(link, stall_s)
    except OSError as error:
        link.close()
        raise lost(error) from error
    except BaseException:
        link.close()
        raise
    return link


def ask(link: socket.socket, question: Ask) -> Reply:
    """Send a request and return its answer. Raises PeerRefused: the other vault cannot do it; WireError: link ended."""
    send(link, question)
    reply, _ = receive(link, replies)
    if isinstance(reply, Refused):
        raise PeerRefused(reply.reason)
    return reply


def set_limits(link: socket.socket, stall_s: float = STALL_S) -> None:
    """Set timeouts and keepalive, so that no thread waits for a peer that is gone, even if its machine lost power."""
    # With TLS Python waits for the socket. Otherwise the kernel has to, as sendfile needs a socket that blocks.
    link.settimeout(stall_s if isinstance(link, TlsLink) else None)
    seconds = struct.pack("ll", int(stall_s), int(stall_s % 1 * 1e6))
    link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, seconds)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, seconds)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
