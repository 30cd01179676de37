"""The addresses of a node's vault: a socket for its ranks and its agent, a port for other vaults."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from pathlib import Path

NAME = "vault.sock"
PORT = "vault-port"
BACKLOG = 64
_PORT_MAX = (1 << 16) - 1


def connect(directory: Path, *, blocking: bool = True) -> socket.socket:
    """Return a connection to the vault of the node with this state directory. Raises BlockingIOError: not `blocking`,
    and the vault does not come to new connections; OSError: there is none.
    """
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    link.setblocking(blocking)
    # The path may be longer than the 107 bytes a socket address holds.
    folder = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        link.connect(f"/proc/self/fd/{folder}/{NAME}")
    except BaseException:
        link.close()
        raise
    finally:
        os.close(folder)
    return link


def listen(directory: Path, ranks_gid: int | None = None) -> socket.socket:
    """Return a socket that only this user and the group of ranks can reach; one of a dead vault is replaced."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    (directory / NAME).unlink(missing_ok=True)
    folder = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    before = os.umask(0o177)
    try:
        listening.bind(f"/proc/self/fd/{folder}/{NAME}")
    finally:
        os.umask(before)
        os.close(folder)
    if ranks_gid is not None:
        os.chown(directory / NAME, -1, ranks_gid)
        (directory / NAME).chmod(0o660)
    listening.listen(BACKLOG)
    return listening


def remove_own(directory: Path) -> None:
    """Remove the socket's file if it leads to this process."""
    with contextlib.suppress(OSError), connect(directory, blocking=False) as link:
        if peer_pid(link) == os.getpid():
            (directory / NAME).unlink(missing_ok=True)


def peer_pid(link: socket.socket) -> int:
    """Return the process at the other end, as the kernel knows it."""
    return _peer(link)[0]


def peer_ids(link: socket.socket) -> tuple[int, int]:
    """Return the user and the group of the process at the other end."""
    return _peer(link)[1:]


def is_peer_ours(link: socket.socket) -> bool:
    """Return True if the process at the other end is of this process's user."""
    return _peer(link)[1] == os.geteuid()


def _peer(link: socket.socket) -> tuple[int, int, int]:
    credentials = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, gid = struct.unpack("3i", credentials)
    return int(pid), int(uid), int(gid)


def port(directory: Path) -> int | None:
    """Return the port for other vaults; None if this node's vault never had one."""
    try:
        number = int((directory / PORT).read_text())
    except (FileNotFoundError, ValueError):
        return None
    return number if 0 < number <= _PORT_MAX else None


def forget_port(directory: Path) -> None:
    """Note that this node's vault has no port for other vaults."""
    (directory / PORT).unlink(missing_ok=True)


def listen_to_peers(directory: Path, address: str) -> socket.socket:
    """Listen for other vaults, at the previous port if it is free; `port` reads which one it is."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    before = port(directory)
    try:
        listening = socket.create_server((address, before or 0), family=family, backlog=128)
    except OSError:
        if before is None:
            raise
        listening = socket.create_server((address, 0), family=family, backlog=128)
    part = directory / f".{PORT}.{os.getpid()}"
    part.write_text(f"{listening.getsockname()[1]}\n")
    part.replace(directory / PORT)
    return listening
