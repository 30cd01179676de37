"""`python -P -m holdfast_agent.zygote.nursery`: imports torch once and forks the zygotes of all agents.

An agent asks over a socket and gets a zygote that is like one it started itself, or a reason why not
([ADR 26](../../../docs/adr/0026-the-nursery.md)). Zygotes do not depend on the nursery: it only reaps them.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import selectors
import signal
import socket
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import msgspec
import structlog

from holdfast.code.loaded import LoadedCode
from holdfast.daemon.logs import log_to_stderr
from holdfast.daemon.ready import announce_ready
from holdfast.node.forks import enter_namespaces, fork_child, take_streams
from holdfast.node.frames import Frames, WireError, framed
from holdfast.node.kernel import peer_pidfd
from holdfast.node.shown import show
from holdfast_agent.zygote import __main__ as zygote_main
from holdfast_agent.zygote import birth, inherited, preload
from holdfast_agent.zygote.birth import ENTERED, BirthReply, BirthRequest, Born, Declined

REQUEST_WITHIN_S = 5.0
"""Time for one agent to send its request, while the others wait."""
EXIT_FAILED = 1
_DESCRIPTORS = 2

log = structlog.get_logger("nursery")


class Nursery:
    """The nursery of one machine, with torch loaded; `unfit` is why it can fork nothing."""

    def __init__(self, listener: socket.socket, environment: tuple[bytes, ...], unfit: str | None) -> None:
        self._listener = listener
        self._environment = environment
        self._unfit = unfit
        self._code = LoadedCode()
        self._places = inherited.code_places()
        self._seen_code = inherited.seen_code(os.getpid(), self._places)
        self._ending = False
        self._wakeup, self._wakeup_in = os.pipe()

    def run(self) -> None:
        """Serve until SIGTERM."""
        for descriptor in (self._wakeup, self._wakeup_in):
            os.set_blocking(descriptor, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._on_end)
        signal.set_wakeup_fd(self._wakeup_in, warn_on_full_buffer=False)
        self._listener.setblocking(False)
        with selectors.DefaultSelector() as selector:
            selector.register(self._wakeup, selectors.EVENT_READ)
            selector.register(self._listener, selectors.EVENT_READ)
            while not self._ending:
                selector.select()
                with contextlib.suppress(BlockingIOError):
                    while os.read(self._wakeup, 4096):
                        continue
                _reap()
                with contextlib.suppress(BlockingIOError):
                    connection, _ = self._listener.accept()
                    with connection:
                        self._serve(connection)

    def _on_end(self, *_: object) -> None:
        self._ending = True

    def _serve(self, connection: socket.socket) -> None:
        connection.settimeout(REQUEST_WITHIN_S)
        received: list[int] = []
        try:
            request = _receive(connection, received)
            reply, pidfd = self._answer(connection, request, received)
            try:
                socket.send_fds(connection, [framed(reply)], pidfd)
            finally:
                for descriptor in pidfd:
                    os.close(descriptor)
        except (OSError, WireError) as error:
            log.warning("a request is dropped", reason=str(error))
        finally:
            for descriptor in received:
                os.close(descriptor)

    def _answer(
        self, connection: socket.socket, request: BirthRequest, received: list[int]
    ) -> tuple[BirthReply, list[int]]:
        began = time.monotonic()
        agent, uid = _peer(connection)
        try:
            with _held(connection, agent) as held:
                reason = self._reason_against(connection, request, agent, uid)
                if reason is None:
                    preload.check_single_threaded()
                    _open_places(agent, received)
                    # Only now is it certain that all of this was the agent's, not of a process with its number.
                    signal.pidfd_send_signal(held, 0)
                    pid = fork_child(lambda _: _become_zygote(request, received, began))
                    log.info("a zygote is born", pid=pid, state_dir=request.state_dir)
                    return Born(pid=pid), [os.pidfd_open(pid)]
        except (OSError, preload.ThreadsRunning) as error:
            reason = str(error)
        log.info("a zygote is declined", reason=reason, state_dir=request.state_dir)
        return Declined(reason=reason), []

    def _reason_against(self, connection: socket.socket, request: BirthRequest, agent: int, uid: int) -> str | None:
        if _has_left(connection):
            return "the agent no longer waits"
        if self._unfit is not None:
            return self._unfit
        if self._code.has_changed():
            return "its code on disk has changed since it was imported"
        if request.python != inherited.python():
            return f"the agent's Python is {request.python}, the nursery's {inherited.python()}"
        if request.release != inherited.RELEASE:
            return f"the agent has release {request.release or 'unknown'} of Holdfast, the nursery {inherited.RELEASE}"
        if request.blocked != inherited.blocked_signals():
            return "the agent blocks other signals"
        if uid != os.getuid():
            return "the agent belongs to another user"
        own = inherited.inherited(os.getpid()) | self._seen_code
        agents = inherited.inherited(agent) | inherited.seen_code(agent, self._places)
        return birth.decline(own, agents, self._environment, request.environment)


def _receive(connection: socket.socket, received: list[int]) -> BirthRequest:
    """Return the request; descriptors go to `received`. Raises WireError: there is no whole request."""
    frames = Frames(msgspec.msgpack.Decoder(BirthRequest))
    while True:
        data, descriptors, _, _ = socket.recv_fds(connection, 1 << 16, _DESCRIPTORS)
        received += descriptors
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        if not data:
            raise WireError("the agent left before it had asked")
        for request in frames.feed(data):
            if len(received) != _DESCRIPTORS:
                raise WireError(f"{len(received)} descriptors came with the request instead of {_DESCRIPTORS}")
            return request


def _has_left(connection: socket.socket) -> bool:
    """Return True if the agent has closed its end: it has started its zygote itself by now."""
    connection.setblocking(False)
    try:
        return not connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    finally:
        connection.settimeout(REQUEST_WITHIN_S)


def _peer(connection: socket.socket) -> tuple[int, int]:
    """Return the pid and uid of the agent."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", credentials)
    return pid, uid


@contextlib.contextmanager
def _held(connection: socket.socket, agent: int) -> Iterator[int]:
    """A pidfd of the agent, by which it is told from a later process with its number."""
    descriptor = peer_pidfd(connection, agent)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _open_places(agent: int, opened: list[int]) -> None:
    """Add the agent's directory, then those of its namespaces that a fork has to enter. What is open when an error is
    raised is in `opened` too.
    """
    opened.append(os.open(f"/proc/{agent}/cwd", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
    for name in ENTERED:
        own, theirs = f"/proc/self/ns/{name}", f"/proc/{agent}/ns/{name}"
        if os.readlink(own) != os.readlink(theirs):
            opened.append(os.open(theirs, os.O_RDONLY | os.O_CLOEXEC))


def _shown_arguments(request: BirthRequest) -> list[str]:
    flags = ("--state-dir", request.state_dir, "--address", request.address)
    return [sys.executable, "-P", "-m", "holdfast_agent.zygote", *flags]


def _become_zygote(request: BirthRequest, received: list[int], began: float) -> NoReturn:
    """Turn this fork into what `python -P -m holdfast_agent.zygote` would be."""
    output, ready, agents_directory, *namespaces = received
    try:
        enter_namespaces(namespaces)
    except OSError as error:
        # The agent starts its zygote itself then.
        log.error("a zygote cannot enter its agent's namespaces", reason=str(error))
        os._exit(EXIT_FAILED)
    os.fchdir(agents_directory)
    os.setsid()
    ready = take_streams(output, output, ready)
    code = EXIT_FAILED
    try:
        os.environ.clear()
        for entry in request.environment:
            name, _, value = entry.partition(b"=")
            os.environb[name] = value
        show(_shown_arguments(request), request.environment)
        directory = Path(request.state_dir)
        zygote_main.serve(directory, request.address, ready, lambda: time.monotonic() - began)
        code = 0
    except BaseException as error:  # noqa: BLE001 - a fork of the nursery ends here whatever happened
        # Reaches the zygote's log, which would otherwise show no cause.
        sys.excepthook(type(error), error, error.__traceback__)
    sys.stderr.flush()
    os._exit(code)


def _reap() -> None:
    """Collect zygotes that have ended: their agents wait for that."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        log.info("a zygote ended", pid=pid, code=os.waitstatus_to_exitcode(status))


def _make_ready(*, brief: bool) -> str | None:
    """Import what ranks need; return why this process cannot serve, None if it can."""
    preload.hold_threads()
    try:
        show(sys.orig_argv, os.environ)  # Where the kernel cannot, it fails here and not in a zygote.
        zygote_main.make_ready(brief=brief)
    except (ImportError, OSError, RuntimeError) as error:
        log.error("agents have to start their zygotes themselves", reason=str(error))
        return str(error)
    return None


def main() -> None:
    """Run a nursery until it is ended."""
    parser = argparse.ArgumentParser(prog="holdfast-nursery")
    parser.add_argument("--socket", type=Path, required=True, help="socket on which agents ask for a zygote")
    parser.add_argument("--brief", action="store_true", help="import only what every script needs: one run waits")
    options = parser.parse_args()
    environment = tuple(name + b"=" + value for name, value in os.environb.items())
    log_to_stderr("nursery")
    place: Path = options.socket
    listener = zygote_main.listen(place.parent, place.name)
    announce_ready()
    try:
        Nursery(listener, environment, _make_ready(brief=options.brief)).run()
    finally:
        place.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
