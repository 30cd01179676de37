"""Servers on loopback that another user of the machine runs in the place of ours.

While a server is down, any user may listen on its port, and is sent the passwords of all who connect. The kernel knows
whose a listening socket is, and whose the other end of a connection is.
"""

from __future__ import annotations

import ipaddress
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_TABLES = ("tcp", "tcp6")
_LISTENS = "0A"
_SYSTEM_MAX = 999
"""Largest uid of system accounts, for example that of a distribution's Postgres."""
_NOBODY = 65534
"""The user of our Postgres under root; and of any process outside a user namespace."""

EVERYONE = -1
_trusted: set[int] = set()
"""Users besides root and one's own whose servers this process sends passwords to."""

Place = tuple[str, int]
"""IP address and port."""


class Impostor(ConnectionError):
    """Another user of the machine has a server's port. No password was sent."""


class _Socket(NamedTuple):
    local: Place
    remote: Place
    is_listening: bool
    uid: int


def trust(uid: int) -> None:
    """Send passwords to servers of this user, or of EVERYONE, from now on: this process uses its cluster, or its
    settings allow plain text.
    """
    _trusted.add(uid)


def refuse_listener(place: Place) -> None:
    """Raise Impostor if a person or a job other than this process's user listens at a place on loopback."""
    address, port = place
    for socket in _sockets():
        on_all = ipaddress.ip_address(socket.local[0]).is_unspecified
        if socket.is_listening and socket.local[1] == port and (on_all or socket.local[0] == _plain(address)):
            _refuse(socket.uid, place)


def refuse_peer(own: Place, peer: Place) -> None:
    """Raise Impostor if the other end of a connection over loopback, or what listens there, is such a user's."""
    refuse_listener(peer)
    ends = (_plain(peer[0]), peer[1]), (_plain(own[0]), own[1])
    for socket in _sockets():
        if (socket.local, socket.remote) == ends:
            _refuse(socket.uid, peer)


def _refuse(uid: int, place: Place) -> None:
    # A connection that is not accepted yet has uid 0, and is the listener's.
    if uid > _SYSTEM_MAX and uid not in (_NOBODY, os.geteuid()) and not _trusted & {uid, EVERYONE}:
        raise Impostor(
            f"user {uid} of this machine has {place[0]}:{place[1]}, where a server of this cluster should be: no "
            "password was sent. End that process, and start the server again; if it is the server, allow that with "
            "plain_text = true in [network]"
        )


def _sockets() -> Iterator[_Socket]:
    for table in _TABLES:
        try:
            lines = Path("/proc/net", table).read_text().splitlines()[1:]
        except OSError:
            continue
        for fields in map(str.split, lines):
            yield _Socket(_place(fields[1]), _place(fields[2]), fields[3] == _LISTENS, int(fields[7]))


def _place(text: str) -> Place:
    """Read an address as the kernel writes it: words of 32 bits, each in the machine's order."""
    address, _, port = text.partition(":")
    words = [int(address[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(address), 8)]
    return _plain(str(ipaddress.ip_address(b"".join(words)))), int(port, 16)


def _plain(address: str) -> str:
    found = ipaddress.ip_address(address)
    return str(getattr(found, "ipv4_mapped", None) or found)
