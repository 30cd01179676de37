"""Servers on loopback that another user of the machine runs in the place of ours.

While a server is down, any user may listen on its port, and is sent the passwords of all who connect. The kernel knows
whose a listening socket is, and whose the other end of a connection is.
"""

from __future__ import annotations

import os

from holdfast.network.socket_owners import Place, owners_of_end, owners_of_listener

_SYSTEM_MAX = 999
"""Largest uid of system accounts, for example that of a distribution's Postgres."""
_NOBODY = 65534
"""The user of our Postgres under root; and of any process outside a user namespace."""

EVERYONE = -1
_trusted: set[int] = set()
"""Users besides root and one's own whose servers this process sends passwords to."""


class Impostor(ConnectionError):
    """Another user of the machine has a server's port. No password was sent."""


def trust(uid: int) -> None:
    """Send passwords to servers of this user, or of EVERYONE, from now on: this process uses its cluster, or its
    settings allow plain text.
    """
    _trusted.add(uid)


def refuse_listener(place: Place) -> None:
    """Raise Impostor if a person or a job other than this process's user listens at a place on loopback."""
    for uid in owners_of_listener(place):
        _refuse(uid, place)


def refuse_peer(own: Place, peer: Place) -> None:
    """Raise Impostor if the other end of a connection over loopback, or what listens there, is such a user's."""
    refuse_listener(peer)
    for uid in owners_of_end(peer, own):
        _refuse(uid, peer)


def _refuse(uid: int, place: Place) -> None:
    # A connection that is not accepted yet has uid 0, and is the listener's.
    if uid > _SYSTEM_MAX and uid not in (_NOBODY, os.geteuid()) and not _trusted & {uid, EVERYONE}:
        raise Impostor(
            f"user {uid} of this machine has {place[0]}:{place[1]}, where a server of this cluster should be: no "
            "password was sent. End that process, and start the server again; if it is the server, allow that with "
            "plain_text = true in [network]"
        )
