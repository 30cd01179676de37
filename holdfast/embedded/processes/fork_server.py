"""The process that imports what Python children of the supervisor need, once for all, and forks them.

Imports are most of what the start of a service or an agent takes. The supervisor forks this process from itself before
it has threads or an event loop, and asks it over a socket (`fork_server_link.py`). A child is forked twice, so that it
belongs to the supervisor: whatever happens to this process, it goes on.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import socket
import sys
from typing import NoReturn

import msgspec

from holdfast.code.loaded import LoadedCode
from holdfast.daemon.quick_imports import quick_imports
from holdfast.daemon.ready import READY_FD_VARIABLE
from holdfast.node.forks import fork_child, run_and_end, run_module, take_streams
from holdfast.node.kernel import die_with_parent, set_process_name, thread_count
from holdfast.node.shown import show

REQUEST_BYTES_MAX = 1 << 20
_DESCRIPTORS = 3


class ForkRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A child to fork: ``python -P -m ARGUMENT...``. With it come its output, a pipe by which it is told to begin, and
    one by which it announces that it is ready.
    """

    arguments: tuple[str, ...]
    imports: str
    """The module that has what it imports."""
    environment: dict[str, str]
    directory: str
    death_signal: int


class ForkReply(msgspec.Struct, frozen=True, kw_only=True):
    """The pid of the forked process, or the reason why there is none."""

    pid: int = 0
    reason: str = ""


class CannotFork(RuntimeError):
    """This process cannot fork such a child; the supervisor executes it."""


def serve(link: socket.socket) -> NoReturn:
    """Be the fork server of the parent process until that closes its end of the socket."""
    supervisor = os.getppid()
    die_with_parent(supervisor)
    os.setsid()  # Ctrl-C is for the supervisor, which ends its children in order.
    null = os.open(os.devnull, os.O_RDWR)
    link = socket.socket(fileno=take_streams(null, null, link.detach()))
    set_process_name("fork server")
    # What is to happen at the end of the supervisor is none of its children's business.
    atexit._clear()
    _keep_to_own_modules()
    try:
        # Where the kernel cannot, it fails here and not in a child.
        show((f"holdfast: fork server of {supervisor}",), os.environ)
    except OSError as error:
        unfit = str(error)
    else:
        unfit = ""
    ForkServer(link, supervisor, unfit).run()


def _keep_to_own_modules() -> None:
    """Let no user's file named logging.py, for example, replace a module, as `python -P` does."""
    if not sys.flags.safe_path:
        del sys.path[0]
    # Nor where PYTHONPATH has an empty entry, the user's directory. It may be that of this library too: it comes last.
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    here = {os.path.abspath(entry) for entry in entries if not os.path.isabs(entry)} - set(entries)
    sys.path.sort(key=lambda place: place in here)


class ForkServer:
    """The fork server of the process `supervisor`, which asks on `link`; `unfit` is why it can fork nothing."""

    def __init__(self, link: socket.socket, supervisor: int, unfit: str) -> None:
        self._link = link
        self._supervisor = supervisor
        self._unfit = unfit
        self._code = LoadedCode()

    def run(self) -> NoReturn:
        while True:
            data, descriptors, _, _ = socket.recv_fds(self._link, REQUEST_BYTES_MAX, _DESCRIPTORS)
            if not data:
                os._exit(0)
            try:
                request = msgspec.msgpack.decode(data, type=ForkRequest)
                reply = ForkReply(pid=self._fork(request, descriptors))
            except (CannotFork, OSError, msgspec.MsgspecError) as error:
                reply = ForkReply(reason=str(error))
            for descriptor in descriptors:
                os.close(descriptor)
            self._link.send(msgspec.msgpack.encode(reply))

    def _fork(self, request: ForkRequest, descriptors: list[int]) -> int:
        """Return the pid of the child, which waits until it is told to begin."""
        if self._unfit:
            raise CannotFork(self._unfit)
        if self._code.has_changed():
            raise CannotFork("the code on disk has changed since the supervisor imported it")
        if request.imports not in sys.modules:
            _import(request.imports)
            self._code.note()
        if (threads := thread_count()) != 1:
            raise CannotFork(f"an import has started threads: there are {threads}")
        reading, writing = os.pipe()

        def between(_: int) -> NoReturn:
            # If this server is killed, the supervisor sees it by the end of the link.
            self._link.close()
            pid = fork_child(lambda _: _become(request, descriptors, self._supervisor))
            os.write(writing, b"%d" % pid)
            os._exit(0)

        try:
            _, status = os.waitpid(fork_child(between), 0)
            if status:
                raise CannotFork("the process between the two forks ended early")
            return int(os.read(reading, 32))
        finally:
            os.close(reading)
            os.close(writing)


def _import(module: str) -> None:
    try:
        with quick_imports():
            importlib.import_module(module)
    except Exception as error:
        raise CannotFork(f"{module} cannot be imported: {error!r}") from error
    finally:
        gc.freeze()


def _become(request: ForkRequest, descriptors: list[int], supervisor: int) -> NoReturn:
    """Turn this fork into what `python -P -m` would be."""
    output, begin, ready = descriptors
    if not os.read(begin, 1):
        os._exit(0)  # The supervisor has gone, or executes this child by now.
    os.setsid()
    die_with_parent(supervisor, request.death_signal)
    kept = take_streams(output, output, ready)
    # An error from here on is in the child's log.
    run_and_end(lambda: _run(request, kept))


def _run(request: ForkRequest, ready: int) -> None:
    os.chdir(request.directory)
    environment = request.environment | {READY_FD_VARIABLE: str(ready)}
    os.environ.clear()
    os.environ.update(environment)
    show((sys.executable, "-P", "-m", *request.arguments), environment)
    set_process_name(os.path.basename(sys.executable))
    run_module(list(request.arguments))
