"""The process that warms a node up, beside the ranks that start (holdfast_checks/warm_up.py), and its results."""

from __future__ import annotations

import contextlib
import importlib
import os
import selectors
import signal
import time
from collections.abc import Callable
from typing import Any, NoReturn

import msgspec

from holdfast.engines.checks.warm_up import WarmUpPlan
from holdfast.node.forks import fork_child
from holdfast.node.kernel import die_with_parent, set_process_name
from holdfast_agent.zygote.wire import Fence, StartWarmUp, WarmUpResults

PROGRAM = "holdfast_checks.warm_up"
NICE = 15
"""Priority of the warm-up, below that of ranks."""

LATE_S = 2.0
"""Time beyond its limit after which the process is killed; results that it has not reported by then are lost."""


class WarmUpHost:
    """The warm-up of the newest order. `send` reports its results as they come."""

    def __init__(self, selector: selectors.BaseSelector, send: Callable[[WarmUpResults], None], log_file: int) -> None:
        self._selector = selector
        self._send = send
        self._log_file = log_file
        self._fence: Fence | None = None
        self._pid = 0
        self._pipe = -1
        self._read = bytearray()
        self.deadline: float | None = None
        """Time at which the process is killed (monotonic clock); None: there is no process."""
        self.pids: set[int] = set()
        """Processes that have not been reaped yet."""

    def start(self, command: StartWarmUp) -> None:
        self.end()
        reading, writing = os.pipe2(os.O_CLOEXEC)
        self._pid = fork_child(lambda parent: _warm_up(parent, command.plan, writing, self._log_file))
        os.close(writing)
        os.set_blocking(reading, False)
        self.pids.add(self._pid)
        self._fence, self._pipe, self._read = command.fence, reading, bytearray()
        self.deadline = time.monotonic() + command.limit_s + LATE_S
        self._selector.register(reading, selectors.EVENT_READ, self)

    def end(self) -> None:
        """End the process, if one is left: its results are not needed any more."""
        if self._pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
        self._close()

    def pump(self) -> None:
        """Report the results that have come."""
        try:
            data = os.read(self._pipe, 1 << 16)
        except BlockingIOError:
            return
        self._read += data
        lines, _, rest = self._read.rpartition(b"\n")
        self._read = bytearray(rest)
        if lines and self._fence is not None:
            self._send(WarmUpResults(fence=self._fence, results=tuple(bytes(lines).split(b"\n"))))
        if not data:
            self._close()

    def keep_time(self, now: float) -> None:
        if self.deadline is not None and now >= self.deadline:
            self.end()

    def _close(self) -> None:
        if self._pipe >= 0:
            self._selector.unregister(self._pipe)
            os.close(self._pipe)
        self._pid, self._pipe, self.deadline = 0, -1, None


def _warm_up(parent: int, plan: bytes, pipe: int, log_file: int) -> NoReturn:
    die_with_parent(parent)
    os.setsid()
    set_process_name("warm-up")
    # On a machine with few processors, the ranks that start need them more.
    os.nice(NICE)
    pipe = os.dup2(pipe, 3, inheritable=False)
    os.dup2(log_file, 1)
    os.dup2(log_file, 2)
    os.closerange(pipe + 1, os.sysconf("SC_OPEN_MAX"))

    def publish(fields: dict[str, Any]) -> None:
        line = msgspec.json.encode(fields) + b"\n"
        while line:
            line = line[os.write(pipe, line) :]

    try:
        importlib.import_module(PROGRAM).run(msgspec.json.decode(plan, type=WarmUpPlan), publish)
    finally:
        os._exit(0)
