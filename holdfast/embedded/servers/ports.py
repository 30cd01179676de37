"""Ports for the embedded servers: requested, remembered or free ones."""

import contextlib
import errno
import random
import socket
from collections.abc import Iterator
from pathlib import Path

from holdfast.embedded.errors import EmbeddedError
from holdfast.embedded.layout import Ports
from holdfast.embedded.servers.credentials import HOST

_EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST = 15_000
_ATTEMPTS_MAX = 200


@contextlib.contextmanager
def reserve_ports(given: dict[str, int | None], remembered: Ports | None) -> Iterator[Ports]:
    """Hold one port per server for as long as the context lasts, also while its server is down.

    `given` maps "postgres", "nats" and "nats_monitor" to the requested port, or None for a free one, if possible that
    of the last run. Raises EmbeddedError if a requested port is taken or requested twice. A reservation is a socket
    that is bound and does not listen, with SO_REUSEADDR: Linux lets our server, which sets the same option, bind and
    listen beside it, and never assigns the port to another process at random.
    """
    asked = [port for port in given.values() if port is not None]
    if twice := {port for port in asked if asked.count(port) > 1}:
        raise EmbeddedError(f"port {min(twice)} is requested twice: each server needs a different port.")
    with contextlib.ExitStack() as held:
        chosen: dict[str, int] = {}
        for server in ("postgres", "nats", "nats_monitor"):
            wanted = given.get(server)
            before = None if remembered is None else getattr(remembered, server)
            reservation = _reserve(server, wanted, before, taken={*chosen.values(), *asked} - {wanted})
            held.enter_context(reservation)
            chosen[server] = reservation.getsockname()[1]
        yield Ports(**chosen)


def _reserve(server: str, wanted: int | None, before: int | None, *, taken: set[int]) -> socket.socket:
    if wanted is not None:
        reservation = _bind(wanted, exclusive=False)
        if reservation is None:
            option = server.replace("_", "-")
            raise EmbeddedError(
                f"port {wanted} on {HOST} is taken by another program. "
                f"Give another with --{option}-port, or omit it to use a free one."
            )
        return reservation
    if before is not None and before not in taken:
        reservation = _bind(before, exclusive=False)
        if reservation is not None:
            return reservation
    for _ in range(_ATTEMPTS_MAX):
        port = random.randrange(_LOWEST, _ephemeral_start())
        reservation = None if port in taken else _bind(port, exclusive=True)
        if reservation is not None:
            return reservation
    raise EmbeddedError(f"no free port found on {HOST} in {_ATTEMPTS_MAX} attempts: name one with --{server}-port.")


def _bind(port: int, *, exclusive: bool) -> socket.socket | None:
    """Reserve a port. Return None if it is taken. A random port must be unused (`exclusive`); a remembered one may
    still have connections of the last run in TIME_WAIT, which SO_REUSEADDR ignores.
    """
    reservation = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    if not exclusive:
        reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        reservation.bind((HOST, port))
    except OSError as error:
        reservation.close()
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            return None
        raise
    reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return reservation


def _ephemeral_start() -> int:
    # Outgoing connections use the ports above: ranks open thousands, and one could take a server's port.
    try:
        start = int(_EPHEMERAL_RANGE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        start = 32_768
    return start if start > _LOWEST + 1_000 else 65_536
