"""The process that serves a generation's TCPStore, so that the store survives the death of any rank."""

from __future__ import annotations

import os
import signal
import socket
from functools import partial
from typing import NoReturn

from holdfast.node.kernel import die_with_parent, set_process_name

STORE_PORTS = 4
BACKLOG = 4096
"""All ranks of a job connect at the same moment."""


class PortsUnavailable(RuntimeError):
    """The node cannot listen on the requested address or ports."""


def bind_ports(address: str, wanted: tuple[int, ...]) -> list[socket.socket]:
    """Return sockets for the stores of coming generations, on `wanted` ports where free. Raises PortsUnavailable."""
    sockets: list[socket.socket] = []
    try:
        for index in range(STORE_PORTS):
            preferred = wanted[index] if index < len(wanted) else 0
            sockets.append(_listen(address, preferred))
    except OSError as error:
        for opened in sockets:
            opened.close()
        raise PortsUnavailable(
            f"cannot listen on {address}: {error.strerror}; is --address an address of this node?"
        ) from error
    return sockets


def _listen(address: str, preferred: int) -> socket.socket:
    family, kind, protocol, _, _ = socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)[0]
    for port in dict.fromkeys((preferred, 0)):
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((address, port))
            listener.listen(BACKLOG)
        except OSError:
            listener.close()
            if port == 0:
                raise
            continue
        return listener
    raise AssertionError("port 0 was tried last")


def serve_store(parent: int, listener: socket.socket, log_file: int) -> NoReturn:
    """Serve the store on this listening socket until killed."""
    die_with_parent(parent)
    os.setsid()
    set_process_name("store")
    address, port = listener.getsockname()[:2]
    keep = os.dup2(listener.fileno(), 3)
    os.dup2(log_file, 1)
    os.dup2(log_file, 2)
    os.closerange(keep + 1, os.sysconf("SC_OPEN_MAX"))
    from torch._C._distributed_c10d import TCPStore

    serve = partial(TCPStore, address, port, is_master=True, wait_for_workers=False, master_listen_fd=keep)
    try:
        store = serve()
    except NotImplementedError:
        # The libuv backend of torch 2.6 does not take a listening socket.
        store = serve(use_libuv=False)
    while store:
        signal.pause()
    raise AssertionError("a store is true")
