"""One child process, which cannot outlive its supervisor and whose exit is noticed immediately."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from holdfast.daemon.ready import READY_FD_VARIABLE
from holdfast.embedded.layout import ChildRecord
from holdfast.embedded.servers.identity import Identity
from holdfast.node.kernel import die_with_parent, started_ticks


class Started(Protocol):
    """A child of this process; `wait` returns its exit code or the negated signal, and forgets it."""

    @property
    def pid(self) -> int: ...
    def wait(self) -> int: ...


class Process:
    """A started process. Call its methods only on the thread of the event loop that started it."""

    def __init__(self, started: Started, ready_fd: int | None) -> None:
        self._started = started
        self._loop = asyncio.get_running_loop()
        self._pidfd = os.pidfd_open(started.pid)
        self._exited: asyncio.Future[int] = self._loop.create_future()
        self._loop.add_reader(self._pidfd, self._collect)
        self._ready_fd = ready_fd
        self.record = ChildRecord(pid=started.pid, started_ticks=started_ticks(started.pid) or 0)

    @property
    def pid(self) -> int:
        return self._started.pid

    async def wait(self) -> int:
        """Wait for the exit. Return the exit code, or the negated signal number."""
        return await asyncio.shield(self._exited)

    async def announced(self) -> None:
        """Wait until the process calls `holdfast.daemon.ready.announce_ready`; forever if it never does."""
        if self._ready_fd is None:
            return
        is_ready: asyncio.Future[bool] = self._loop.create_future()
        fd = self._ready_fd

        def look() -> None:
            self._loop.remove_reader(fd)
            if not is_ready.done():
                is_ready.set_result(bool(os.read(fd, 1)))

        self._loop.add_reader(fd, look)
        try:
            if not await is_ready:
                # It closed the pipe without a message: its death, or the time limit, ends the wait.
                await asyncio.Event().wait()
        finally:
            if self._ready_fd is not None:  # Once collected, the number may already belong to someone else.
                self._loop.remove_reader(fd)

    def send_signal(self, number: int) -> None:
        if not self._exited.done():
            try:
                signal.pidfd_send_signal(self._pidfd, number)
            except ProcessLookupError:
                return

    def kill_and_reap(self) -> None:
        """End it at once, without the event loop: for a supervisor on its way out."""
        if not self._exited.done():
            self.send_signal(signal.SIGKILL)
            self._collect()

    def _collect(self) -> None:
        self._loop.remove_reader(self._pidfd)
        code = self._started.wait()
        os.close(self._pidfd)
        if self._ready_fd is not None:
            self._loop.remove_reader(self._ready_fd)
            os.close(self._ready_fd)
            self._ready_fd = None
        if not self._exited.done():
            self._exited.set_result(code)


def spawn(
    argv: Sequence[str],
    *,
    environment: Mapping[str, str],
    directory: Path,
    output: int,
    death_signal: int,
    identity: Identity = Identity.AS_IS,
    announces: bool = False,
) -> Process:
    """Start a program, watched by the running event loop; the arguments are those of `start`. With `announces` the
    program is handed the pipe for `announce_ready`. Raises OSError if it cannot be run.
    """
    if not announces:
        return Process(start(argv, environment, directory, output, death_signal, identity), None)
    reading, writing = os.pipe()
    try:
        environment = {**environment, READY_FD_VARIABLE: str(writing)}
        popen = start(argv, environment, directory, output, death_signal, identity, keep=(writing,))
    except OSError:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    return Process(popen, reading)


def start(
    argv: Sequence[str],
    environment: Mapping[str, str],
    directory: Path,
    output: int,
    death_signal: int,
    identity: Identity,
    keep: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a program in a new session, stdout and stderr to the descriptor `output`.

    `death_signal` reaches it when this process dies. Call it on the main thread: the kernel treats the death of the
    *thread* that forked as the death of the parent. `keep` are descriptors that it inherits. Raises OSError if the
    program cannot be run.
    """
    return subprocess.Popen(
        list(argv),
        env=dict(environment),
        cwd=directory,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
        pass_fds=tuple(keep),
        preexec_fn=_child_setup(death_signal, identity),
    )


def _child_setup(death_signal: int, identity: Identity) -> Callable[[], None]:
    parent = os.getpid()

    def setup() -> None:
        identity.enter()  # Between fork and exec, other threads may hold locks: use plain system calls only.
        # After the identity: a change of credentials clears the death signal.
        die_with_parent(parent, death_signal)

    return setup


def describe_exit(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
