"""Forks Python processes from one that has imported much, for `tests/warm_python.py`: ``warm_server.py SOCKET KIND``

KIND is what has been imported: `torch`, or `holdfast`, the command line, the agent and the vault.

A fork does what `python ARGUMENT...` would do, in its own environment and directory. It ends as an interpreter ends,
but leaves its objects to the kernel: to take them apart copies every page that it shares, which takes longer than most
commands.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.daemon.quick_imports import quick_imports
from holdfast.embedded.layout import SERVICES
from holdfast.node import kernel
from holdfast.node.forks import run_and_end, run_module
from holdfast.node.vault.huge_pages import collapse_heap

FILES_MOST = 64


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A process that somebody asked for; `files` maps its descriptors to ours."""

    arguments: list[str]
    environment: dict[str, str]
    directory: str
    has_session: bool
    files: dict[int, int]


def receive(connection: socket.socket) -> Asked:
    data, files = b"", list[int]()
    while not data.endswith(b"\n"):
        part, descriptors, _, _ = socket.recv_fds(connection, 1 << 20, FILES_MOST)
        assert part, "the test left before it had asked"
        data += part
        files += descriptors
    asked: dict[str, Any] = json.loads(data)
    asked["files"] = dict(zip(asked["files"], files, strict=True))
    return Asked(**asked)


def become(asked: Asked, parent: int) -> None:
    """Be such a process from here on, but for what it runs."""
    kernel.die_with_parent(parent)
    if asked.has_session:
        os.setsid()
    # A test may have given any number: what is put aside lies above all of them.
    first = max(*asked.files, *asked.files.values()) + 1
    for index, source in enumerate(asked.files.values()):
        os.dup2(source, first + index)
    os.closerange(3, first)
    for index, target in enumerate(asked.files):
        os.dup2(first + index, target)
    os.closerange(first, first + len(asked.files))
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.chdir(asked.directory)
    os.environ.clear()
    os.environ.update(asked.environment)
    path = [place for place in asked.environment.get("PYTHONPATH", "").split(os.pathsep) if place]
    sys.path[:0] = path


def run(arguments: list[str]) -> None:
    """Run what `python` would run with these arguments: a module, a line of code, or a script."""
    while arguments[0] in ("-P", "-u"):
        arguments = arguments[1:]
    if arguments[0] == "-m":
        sys.path.insert(0, os.getcwd())
        run_module(arguments[1:])
    elif arguments[0] == "-c":
        sys.argv = ["-c", *arguments[2:]]
        sys.path.insert(0, "")
        exec(compile(arguments[1], "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102 - of a test, as `python -c`
    else:
        sys.argv = arguments
        sys.path.insert(0, str(Path(arguments[0]).parent))
        runpy.run_path(arguments[0], run_name="__main__")


def serve(listener: socket.socket) -> Asked:
    """Fork for whoever asks; return in each fork, with what it is to be."""
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    asking = dict[int, socket.socket]()
    while True:
        ready, _, _ = select.select([listener, woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
        for pid, connection in list(asking.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    connection.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))
                asking.pop(pid).close()
        if listener in ready:
            connection, _ = listener.accept()
            asked = receive(connection)
            parent, pid = os.getpid(), os.fork()
            if pid == 0:
                for ours in (listener, connection, *asking.values()):
                    ours.detach()
                become(asked, parent)
                return asked
            for descriptor in asked.files.values():
                os.close(descriptor)
            asking[pid] = connection
            connection.sendall(b"%d\n" % pid)


def import_torch() -> None:
    from holdfast.trainer.rank import keep_operators
    from holdfast_agent.zygote import preload

    preload.hold_threads()
    preload.preload()
    keep_operators()


def import_holdfast() -> None:
    """Import what commands, agents, vaults and services import, as they do."""
    with quick_imports():
        import holdfast.cli.commands
        import holdfast_agent.main  # noqa: F401
        import holdfast_vault.main  # noqa: F401

        commands = pkgutil.walk_packages(holdfast.cli.commands.__path__, f"{holdfast.cli.commands.__name__}.")
        services = (f"holdfast_{service}.main" for service in SERVICES)
        for name in ("holdfast.cli.main", *services, *(module.name for module in commands)):
            importlib.import_module(name)


KINDS = {"torch": import_torch, "holdfast": import_holdfast}


if __name__ == "__main__":
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # Whoever finds it may connect.
    listening.bind(f"{sys.argv[1]}.new")
    listening.listen()
    os.rename(f"{sys.argv[1]}.new", sys.argv[1])
    KINDS[sys.argv[2]]()
    gc.collect()
    gc.freeze()
    collapse_heap()  # Its forks copy page tables: of each process of tests the most expensive part.
    asked = serve(listening)
    run_and_end(lambda: run(asked.arguments))
