"""Forks made ahead: processes that have everything of a rank but its plan.

The first fork and the first touch of every page cost more time than a restart has. The reserve pays for them while the
present ranks train. Each plan is sent to at most one process, once; a process that may have received part of a plan is
killed. Unused processes do nothing and die with the zygote.
"""

from __future__ import annotations

import os
import signal
import socket
from typing import NamedTuple

import structlog

from holdfast.node.frames import framed
from holdfast_agent.zygote.fork_rank import await_plan, become_rank, fork_child
from holdfast_agent.zygote.preload import ThreadsRunning, check_single_threaded
from holdfast_agent.zygote.wire import RankSlot

REFILL_AFTER_S = 1.0
"""Time during which newly started ranks have the processors to themselves."""

log = structlog.get_logger(__name__)


class Forked(NamedTuple):
    """A forked process and the read ends of its two pipes."""

    pid: int
    output: int
    errors: int


class _Warm(NamedTuple):
    """A process that waits for a plan, and the socket on which it waits."""

    forked: Forked
    orders: int


def fork_rank(slot: RankSlot, plans: int) -> Forked:
    """Fork the zygote into a rank. Raises OSError if no process or pipe is available."""
    with _Pipes() as pipes:
        pid = fork_child(lambda parent: become_rank(slot, plans, parent, pipes.out_write, pipes.err_write))
        return pipes.forked(pid)


class Reserve:
    """The waiting processes of one zygote: as many as the newest order has ranks."""

    def __init__(self) -> None:
        self._warm: list[_Warm] = []
        self._wanted = 0
        self.deadline: float | None = None
        """Time of the next `refill` (monotonic clock)."""

    @property
    def pids(self) -> set[int]:
        return {warm.forked.pid for warm in self._warm}

    def take(self, slot: RankSlot, plans: int) -> Forked | None:
        """Turn a waiting process into this rank; return None if none can be used."""
        while self._warm and slot.start == "fork":
            warm = self._warm.pop(0)
            body = framed(slot)
            link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, fileno=warm.orders)
            try:
                whole = socket.send_fds(link, [body], [plans]) == len(body)
            except (ConnectionError, BlockingIOError):
                whole = False
            link.detach()
            if not whole:
                # It must be dead before another process gets this plan.
                self._discard(warm)
                continue
            os.close(warm.orders)
            return warm.forked
        return None

    def want(self, count: int, now: float) -> None:
        """Keep this many processes, starting a while after `now`."""
        self._wanted = count
        self.deadline = now + REFILL_AFTER_S if len(self._warm) < count else None

    def refill(self, now: float) -> None:
        """Fork one process if it is time; one per call, so that a call is short."""
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
        """Return True if an exited process was in the reserve; it is not replaced before the next order."""
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
    orders, orders_write = (end.detach() for end in socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM))
    try:
        # A plan is sent whole or not at all: a process that does not read must not block the zygote.
        os.set_blocking(orders_write, False)
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
    """A rank's two pipes around its fork. The write ends are always closed, the read ends only if the fork failed."""

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
