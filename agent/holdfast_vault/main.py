"""The vault of one node: it keeps checkpoints of the node's ranks in memory, and copies for other nodes."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import threading
from pathlib import Path

from holdfast.daemon.logs import log_to_stderr
from holdfast.node.users.user_rights import find_job_user
from holdfast.node.vault.vault_socket import BACKLOG, listen, listen_to_peers
from holdfast_vault.limits import add_flags, limits_of, network_of
from holdfast_vault.local.server import LocalServer
from holdfast_vault.node_vault import NodeVault
from holdfast_vault.peers.trust import PeerTrust
from holdfast_vault.succession.succession_records import Inheritance
from holdfast_vault.succession.successor import FLAG, Listening, fork_successor, succeed

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def main() -> None:
    """Run the vault until a signal stops it, or until no agent and no rank has been there for `--orphan-s`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--state-dir", type=Path, required=True, help="directory in which the ranks find its socket")
    parser.add_argument("--copy-threads", type=int, default=1, help="number of threads that copy one rank's state")
    parser.add_argument("--orphan-s", type=float, default=60.0, help="end after these seconds without agent and ranks")
    parser.add_argument("--ranks-user", default="", help="user of ranks, if it is not ours")
    parser.add_argument("--ranks-group", type=int, help="group of ranks, if each job has a user of its own")
    parser.add_argument("--address", default="127.0.0.1", help="address at which it answers the vaults of other nodes")
    add_flags(parser)
    parser.add_argument("--ready-fd", type=int, help="closed as soon as ranks can connect")
    parser.add_argument(FLAG, default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    log_to_stderr("holdfast_vault")
    user = find_job_user(arguments.ranks_user)
    network = network_of(arguments)
    ready = [] if arguments.ready_fd is None else [arguments.ready_fd]
    if arguments.succeed:
        listening, inheritance = succeed(arguments.succeed)
    else:
        local = listen(arguments.state_dir, arguments.ranks_group if user is None else user.gid)
        peers: socket.socket | None = listen_to_peers(arguments.state_dir, arguments.address)
        if peers is not None and PeerTrust(network).why_not(peers.getsockname()[0]):
            peers.close()
            peers = None
        listening, inheritance = Listening(local, peers), Inheritance()
    handover, inheritance = fork_successor(listening, inheritance, lambda: _close(ready))
    stop = _stop_signals()
    # Ask the kernel to name this process to those who connect, instead of the one that is gone.
    listening.local.listen(BACKLOG)
    limits = limits_of(arguments)
    group = arguments.ranks_group
    node = NodeVault(arguments.state_dir, arguments.address, limits, user, network, listening.peers, handover, group)
    node.adopt(inheritance)
    vault = LocalServer(
        arguments.state_dir,
        listening.local,
        node,
        orphan_s=arguments.orphan_s,
        copy_threads=arguments.copy_threads,
    )
    handover.serving()
    _close(ready)
    serving = threading.Thread(target=vault.serve)
    serving.start()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    os.read(stop, 1)
    handover.close()
    vault.close()
    serving.join()


def _close(descriptors: list[int]) -> None:
    while descriptors:
        os.close(descriptors.pop())


def _stop_signals() -> int:
    """Return a descriptor that is readable once a signal has asked this process to stop.

    The signals are masked, so that threads which start now are never interrupted by one. A thread of a library that was
    imported before may still take one: it must not end the process.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing)
    for number in STOP_SIGNALS:
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    return reading
