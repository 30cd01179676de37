"""A connection to the vault of another node, opened from here."""

from __future__ import annotations

import socket

from holdfast.node.vault.vault_wire import Refused, VaultWireError, lost, send
from holdfast.orders.backup import VaultAddress
from holdfast_vault.assignments import Assignment
from holdfast_vault.peers import handshake
from holdfast_vault.peers.peer_wire import STALL_S, Ask, Reply, receive_reply, set_limits

CONNECT_S = 2.0


class NobodyThere(VaultWireError):
    """No vault runs there: what it held is lost."""


class PeerRefused(VaultWireError):
    """The other vault cannot do it; the message is its reason, and the connection stays usable."""


def dial(address: VaultAddress, assignment: Assignment, stall_s: float = STALL_S) -> socket.socket:
    """A connection on which both sides have shown that they belong to the job.

    Raises:
        NotAdmitted: they do not, or the other does not know of the job yet.
        NobodyThere: no vault listens there.
        VaultWireError: there is no answer, or it ended.
    """
    order = assignment.order
    try:
        link = socket.create_connection((address.host, address.port), timeout=CONNECT_S)
    except ConnectionRefusedError as error:
        raise NobodyThere("no vault runs there") from error
    except OSError as error:
        raise lost(error) from error
    try:
        handshake.greet(link, order.node, order.job, order.submitted_ms, order.generation, assignment.token)
        set_limits(link, stall_s)
    except BaseException:
        link.close()
        raise
    return link


def ask(link: socket.socket, question: Ask) -> Reply:
    """Ask, and wait for the answer.

    Raises:
        PeerRefused: it cannot be done.
        VaultWireError: the connection ended.
    """
    send(link, question)
    reply = receive_reply(link)
    if isinstance(reply, Refused):
        raise PeerRefused(reply.reason)
    return reply
