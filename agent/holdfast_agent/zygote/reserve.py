"""Forks made ahead: processes that have everything of a rank but its plan, and wait for it.

The first fork and the first touch of every page cost more time than a restart has. A reserve pays for them while the
ranks before are training. Each plan is sent to one process at most, once; one that may have got part of a plan is
killed. Unused ones do nothing, and die with the zygote.
"""

from __future__ import annotations

import fcntl
import os
import signal
from typing import NamedTuple

import structlog

from holdfast.node.frames import framed
from holdfast_agent.zygote.fork_rank import await_plan, become_rank, fork_child
from holdfast_agent.zygote.logs import PIPE_BYTES
from holdfast_agent.zygote.preload import ThreadsRunning, check_single_threaded
from holdfast_agent.zygote.wire import RankPlan

REFILL_AFTER_S = 1.0
"""How long ranks that have just started have the processors to themselves."""

log = structlog.get_logger(__name__)


class Forked(NamedTuple):
    """A fresh process and the read ends of its two pipes."""

    pid: int
    output: int
    errors: int


class _Warm(NamedTuple):
    """A process that waits for a plan, and the pipe that the plan goes into."""

    forked: Forked
    orders: int


def fork_rank(plan: RankPlan) -> Forked:
    """Fork the zygote into a rank.

    Raises:
        OSError: the kernel gives no process or no pipe.
    """
    with _Pipes() as pipes:
        pid = fork_child(lambda parent: become_rank(plan, parent, pipes.out_write, pipes.err_write))
        return pipes.forked(pid)


class Reserve:
    """The waiting processes of one zygote: as many as the newest order had ranks."""

    def __init__(self) -> None:
        self._warm: list[_Warm] = []
        self._wanted = 0
        self.deadline: float | None = None
        """When `refill` wants to be called (monotonic clock)."""

    @property
    def pids(self) -> set[int]:
        """The waiting processes."""
        return {warm.forked.pid for warm in self._warm}

    def take(self, plan: RankPlan) -> Forked | None:
        """Let a waiting process become this rank; None if there is none that can."""
        while self._warm and plan.start == "fork":
            warm = self._warm.pop(0)
            body = framed(plan)
            try:
                whole = os.write(warm.orders, body) == len(body)
            except (BrokenPipeError, BlockingIOError):
                whole = False
            if not whole:
                # Dead before anybody else gets this plan.
                self._discard(warm)
                continue
            os.close(warm.orders)
            return warm.forked
        return None

    def want(self, count: int, now: float) -> None:
        """Have so many from a while after `now` on."""
        self._wanted = count
        self.deadline = now + REFILL_AFTER_S if len(self._warm) < count else None

    def refill(self, now: float) -> None:
        """Fork one, if it is time; one at a time, so that nobody waits for it long."""
        if self.deadline is None or now < self.deadline:
            return
        try:
            check_single_threaded()
            self._warm.append(_fork_warm())
        except (OSError, ThreadsRunning) as error:
            log.warning("no forks are made ahead for now", reason=str(error))
            self.deadline = None
            return
        self.deadline = now if len(self._warm) < self._wanted else None

    def ended(self, pid: int, code: int) -> bool:
        """Whether a process that ended was one of them; it is not replaced before the next order."""
        for warm in self._warm:
            if warm.forked.pid == pid:
                log.warning("a fork made ahead ended", pid=pid, code=code)
                self._warm.remove(warm)
                self._close(warm)
                self.deadline = None
                return True
        return False

    def _discard(self, warm: _Warm) -> None:
        os.kill(warm.forked.pid, signal.SIGKILL)
        os.waitpid(warm.forked.pid, 0)
        self._close(warm)

    def _close(self, warm: _Warm) -> None:
        for descriptor in (warm.orders, warm.forked.output, warm.forked.errors):
            os.close(descriptor)


def _fork_warm() -> _Warm:
    orders, orders_write = os.pipe()
    try:
        # A plan is written whole or not at all; a process that does not read must not stop the zygote.
        os.set_blocking(orders_write, False)
        try:
            fcntl.fcntl(orders_write, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        except OSError as error:
            log.debug("a pipe stays small", reason=error.strerror)
        with _Pipes() as pipes:
            pid = fork_child(lambda parent: await_plan(parent, pipes.out_write, pipes.err_write, orders))
            forked = pipes.forked(pid)
    except OSError:
        os.close(orders_write)
        raise
    finally:
        os.close(orders)
    return _Warm(forked, orders_write)


class _Pipes:
    """A rank's two pipes around its fork: the write ends are closed at the end, the read ends unless it was forked."""

    def __enter__(self) -> _Pipes:
        self._out_read, self.out_write = os.pipe()
        try:
            self._err_read, self.err_write = os.pipe()
        except OSError:
            os.close(self._out_read)
            os.close(self.out_write)
            raise
        self._is_forked = False
        return self

    def forked(self, pid: int) -> Forked:
        self._is_forked = True
        return Forked(pid, self._out_read, self._err_read)

    def __exit__(self, *_: object) -> None:
        os.close(self.out_write)
        os.close(self.err_write)
        if not self._is_forked:
            os.close(self._out_read)
            os.close(self._err_read)
