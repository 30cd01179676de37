"""`python -P -m holdfast_agent.zygote`: takes the node's lock, imports what ranks need, then serves its agent."""

from __future__ import annotations

import argparse
import fcntl
import gc
import os
import socket
from collections.abc import Callable
from pathlib import Path

import msgspec
import structlog

from holdfast.daemon.logs import log_to_stderr
from holdfast.node import kernel, process_mark
from holdfast.node.vault.huge_pages import collapse_heap
from holdfast.trainer.hooks import install_hooks
from holdfast_agent.files.ledger_memory import LedgerMemory
from holdfast_agent.zygote import preload
from holdfast_agent.zygote.zygote import LOCK_FILE, PID_FILE, PORTS_FILE, SOCKET, Zygote

BACKLOG = 512
"""Connections that wait. A nursery takes none while it imports, and every agent of the machine asks meanwhile."""

log = structlog.get_logger("zygote")


class AlreadyRunning(RuntimeError):
    """Another zygote serves this state directory."""


def listen(directory: Path, name: str = SOCKET) -> socket.socket:
    """Return a listening socket for this user. The path may exceed the 107 bytes of a socket address."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    folder = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        (directory / name).unlink(missing_ok=True)
        mask = os.umask(0o077)
        try:
            listener.bind(f"/proc/self/fd/{folder}/{name}")
        finally:
            os.umask(mask)
        listener.listen(BACKLOG)
    finally:
        os.close(folder)
    return listener


def _lock(directory: Path) -> int:
    descriptor = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise AlreadyRunning(f"another zygote serves {directory}") from None
    return descriptor


def _mark(directory: Path) -> None:
    """Mark this process and all that descend from it, so that the agent finds what survives a kill of the zygote."""
    try:
        process_mark.put_on_self(process_mark.mark_of(directory))
    except (OSError, ValueError) as error:
        log.warning("what ranks leave behind cannot be found after a kill", reason=str(error))


def _remembered_ports(directory: Path) -> tuple[int, ...]:
    try:
        return msgspec.json.decode((directory / PORTS_FILE).read_bytes(), type=tuple[int, ...])
    except (FileNotFoundError, msgspec.DecodeError):
        return ()


def make_ready(*, brief: bool = False) -> float:
    """Import what ranks need, and make the heap cheap to fork; return the seconds that the imports took.

    With `brief`, for one run that waits: import what every script needs, and leave the heap as it is. A rank imports
    the rest itself, and its fork takes some milliseconds more.
    """
    # Nearly everything that is imported stays alive: collecting garbage meanwhile takes a fifth of the time.
    gc.disable()
    install_hooks.install()
    preload_s = preload.preload(preload.FEW_MODULES if brief else preload.MODULES)
    # They import torch.
    from holdfast_agent.zygote import crew  # noqa: F401
    from holdfast_agent.zygote.hosts import store_host  # noqa: F401

    preload.read_sources()
    if not brief:
        gc.collect()
    gc.freeze()
    log.info("imported", preload_s=round(preload_s, 3), huge_pages=0 if brief else collapse_heap())
    return preload_s


def serve(directory: Path, address: str, ready_fd: int | None, warm: Callable[[], float]) -> None:
    """Serve the agent of this state directory until ended. `warm` makes torch available, and returns its seconds."""
    log_to_stderr("zygote")
    lock = _lock(directory)
    preload.hold_threads()
    kernel.become_subreaper()
    _mark(directory)
    LedgerMemory(directory).hold()
    listener = listen(directory)
    (directory / PID_FILE).write_text(f"{os.getpid()}\n")
    if ready_fd is not None:
        os.close(ready_fd)
    preload_s = warm()
    from holdfast_agent.zygote.hosts.store_host import bind_ports

    stores = bind_ports(address, _remembered_ports(directory))
    (directory / PORTS_FILE).write_bytes(msgspec.json.encode([store.getsockname()[1] for store in stores]))
    zygote = Zygote(directory, listener, stores, preload_s)
    gc.freeze()
    log.info("ready", preload_s=round(preload_s, 3), pid=os.getpid())
    try:
        zygote.run()
    finally:
        (directory / SOCKET).unlink(missing_ok=True)
        (directory / PID_FILE).unlink(missing_ok=True)
        os.close(lock)


def main(argv: list[str] | None = None) -> None:
    """Run a zygote until it is ended."""
    parser = argparse.ArgumentParser(prog="holdfast-zygote")
    parser.add_argument("--state-dir", type=Path, required=True)
    parser.add_argument("--address", default="127.0.0.1")
    parser.add_argument("--ready-fd", type=int, help="closed when the socket listens")
    options = parser.parse_args(argv)
    serve(options.state_dir, options.address, options.ready_fd, make_ready)


if __name__ == "__main__":
    main()
