"""The process that waits for the end of its node's vault, and then takes its place.

It is a fork of the vault from before the vault had threads, connections or shards, so it waits with its modules
imported. It shares the listening sockets: a connection that is made after the vault's death waits for the successor.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

import structlog

from holdfast.decoding import UNREADABLE
from holdfast.node.kernel import is_stopped
from holdfast_vault.succession.handover import Handover, Successor
from holdfast_vault.succession.succession_records import DEPOSITS_MAX, Ended, Inheritance, close_all, records

FLAG = "--succeed"
LOOK_EVERY_S = 0.25
STOPPED_LOOKS = 2
"""Number of looks in a row at which a vault is found stopped before it is killed: its ranks wait for it, and its memory
is not lost."""
DEATH_WITHIN_S = 10.0
"""Time from the end of the connection to the end of the process."""
RECORD_BYTES_MAX = 1 << 20
_NONE = -1

log = structlog.get_logger(__name__)


class Listening(NamedTuple):
    """The sockets of a vault: for its node's ranks and agent, and for other vaults."""

    local: socket.socket
    peers: socket.socket | None
    """None: it may not serve others at its address."""


def fork_successor(
    listening: Listening, inheritance: Inheritance, leave: Callable[[], None]
) -> tuple[Handover, Inheritance]:
    """Fork a successor. Return at once in the vault; in the successor, when it is the vault, with what it inherits.

    The successor first calls `leave`, which closes what is the vault's alone.
    """
    while True:
        ours, theirs = _connected()
        vault = os.getpid()
        pidfd = os.pidfd_open(vault)
        pid = os.fork()
        if pid:
            os.close(pidfd)
            theirs.close()
            return Handover(Successor(ours, pid), lambda: _started(listening)), inheritance
        ours.close()
        leave()
        inheritance.close()
        inheritance = _inherit(theirs, vault, pidfd)


def succeed(given: str) -> tuple[Listening, Inheritance]:
    """Wait as the successor that a vault has started by `FLAG`."""
    vault, pidfd, link, local, peers = map(int, given.split(":"))
    for descriptor in (pidfd, link, local, peers):
        if descriptor != _NONE:
            os.set_inheritable(descriptor, False)
    listening = Listening(socket.socket(fileno=local), socket.socket(fileno=peers) if peers != _NONE else None)
    return listening, _inherit(socket.socket(fileno=link), vault, pidfd)


def _started(listening: Listening) -> Successor:
    """Start a successor as a new process: a fork of a vault that serves would have its threads' locks."""
    ours, theirs = _connected()
    pidfd = os.pidfd_open(os.getpid())
    peers = _NONE if listening.peers is None else listening.peers.fileno()
    descriptors = pidfd, theirs.fileno(), listening.local.fileno(), peers
    given = ":".join(map(str, (os.getpid(), *descriptors)))
    arguments = _without(("--ready-fd", FLAG), sys.argv[1:])
    command = (sys.executable, "-P", "-m", "holdfast_vault", *arguments, FLAG, given)
    try:
        process = subprocess.Popen(
            command, pass_fds=[it for it in descriptors if it != _NONE], stdin=subprocess.DEVNULL
        )
    finally:
        os.close(pidfd)
        theirs.close()
    return Successor(ours, process.pid)


def _connected() -> tuple[socket.socket, socket.socket]:
    """Return the vault's end of a connection, which never waits, and the successor's."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    return ours, theirs


def _without(flags: Sequence[str], arguments: Sequence[str]) -> list[str]:
    left = list(arguments)
    for flag in flags:
        while flag in left:
            at = left.index(flag)
            del left[at : at + 2]
    return left


def _inherit(link: socket.socket, vault: int, pidfd: int) -> Inheritance:
    """Return what the vault had when it was killed or crashed. Exit if it ends in order, ended before it served, or has
    another successor."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGINT))
    inheritance = Inheritance()
    while _received(link, inheritance):
        _await_record(link, vault, pidfd)
    link.close()
    # Its sockets close before it has ended; then its ranks may come, and other vaults.
    if not inheritance.is_served or not _is_readable(pidfd, DEATH_WITHIN_S):
        sys.exit(0)
    os.close(pidfd)
    log.warning("the vault was killed or crashed; this process takes its place", pid=vault)
    return inheritance


def _received(link: socket.socket, inheritance: Inheritance) -> bool:
    """Take in the vault's next record, if there is one; return False if the vault is gone."""
    if not _is_readable(link.fileno(), 0):
        return True
    try:
        data, descriptors, _, _ = socket.recv_fds(link, RECORD_BYTES_MAX, 2 * DEPOSITS_MAX)
    except ConnectionError:
        return False
    if not data:
        return False
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    try:
        some = records.decode(data)
    except UNREADABLE as error:
        close_all(descriptors)
        log.error("this successor does not understand the vault and ends", reason=str(error))
        sys.exit(1)
    if Ended() in some:
        sys.exit(0)
    inheritance.take(some, descriptors)
    return True


def _await_record(link: socket.socket, vault: int, pidfd: int) -> None:
    """Wait until the vault sends a record or ends. A vault that is stopped meanwhile (SIGSTOP) is killed."""
    looks = 0
    while not _is_readable(link.fileno(), LOOK_EVERY_S):
        looks = looks + 1 if is_stopped(vault) else 0
        if looks >= STOPPED_LOOKS:
            log.warning("the vault is stopped: it is killed and replaced", pid=vault)
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)


def _is_readable(descriptor: int, wait_s: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(round(wait_s * 1000)))
