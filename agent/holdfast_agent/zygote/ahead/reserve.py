"""Forks made ahead: processes that have everything of a rank but its plan.

The first fork and the first touch of every page cost more time than a restart has. The reserve pays for them while the
present ranks train. Each plan is sent to at most one process, once; a process that may have received part of a plan is
killed. Unused processes do nothing and die with the zygote.
"""

from __future__ import annotations

import os
import signal
import socket
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple, NoReturn

import structlog

from holdfast.node.forks import fork_child
from holdfast.node.frames import framed
from holdfast_agent.zygote.fork_rank import await_plan, await_plan_as, become_rank
from holdfast_agent.zygote.preload import ThreadsRunning, check_single_threaded
from holdfast_agent.zygote.wire import RankSlot

REFILL_AFTER_S = 1.0
"""Time during which newly started ranks have the processors to themselves."""

DISCARD_AFTER_S = 60.0
"""Time after the last rank's end in which a job may restart; its interpreters take as much memory as its ranks."""

log = structlog.get_logger(__name__)


class Forked(NamedTuple):
    """A forked process and the read ends of its two pipes."""

    pid: int
    output: int
    errors: int


class Warm(NamedTuple):
    """A process that waits for a plan, the socket on which it waits, and the kind of ranks that it can become."""

    forked: Forked
    orders: int
    kind: str


def fork_rank(slot: RankSlot, plans: int) -> Forked:
    """Fork the zygote into a rank. Raises OSError if no process or pipe is available."""
    with _Pipes() as pipes:
        pid = fork_child(lambda parent: become_rank(slot, plans, parent, pipes.out_write, pipes.err_write))
        return pipes.forked(pid)


class Reserve:
    """The waiting processes of one zygote: one for each rank of the newest order, of its kind."""

    def __init__(self) -> None:
        self._warm: list[Warm] = []
        self._wanted: tuple[RankSlot, ...] = ()
        self._plans: int | None = None
        """The file of the plans of the wanted ranks, while the reserve may need it."""
        self._refill_at: float | None = None
        self._discard_at: float | None = None

    @property
    def deadline(self) -> float | None:
        """Time of the next `keep_time` call (monotonic clock)."""
        return min((at for at in (self._refill_at, self._discard_at) if at is not None), default=None)

    @property
    def pids(self) -> set[int]:
        return {warm.forked.pid for warm in self._warm}

    def take(self, slot: RankSlot, plans: int) -> Forked | None:
        """Turn a waiting process into this rank; return None if none can be used."""
        while slot.kind and (warm := next((warm for warm in self._warm if warm.kind == slot.kind), None)) is not None:
            self._warm.remove(warm)
            if hand_over(warm, slot, plans):
                return warm.forked
            # It must be dead before another process gets this plan.
            self._discard(warm)
        return None

    def want(self, slots: Iterable[RankSlot], plans: int, now: float) -> None:
        """Keep one waiting process for each of these ranks, forked `REFILL_AFTER_S` after `now` at the earliest;
        discard interpreters of other kinds."""
        self.rest(now)
        self._discard_at = None
        self._wanted = tuple(slot for slot in slots if slot.kind)
        if any(slot.kind != "fork" for slot in self._wanted):
            self._plans = os.dup(plans)
        kinds = {"fork", *(slot.kind for slot in self._wanted)}
        self._discard_all_but(kinds)
        self._refill_at = now + REFILL_AFTER_S if self._missing() is not None else None

    def rest(self, now: float) -> None:
        """Make no more interpreters, since the plans of a job are not kept longer than its ranks; discard the waiting
        ones after `DISCARD_AFTER_S`."""
        if self._plans is not None:
            os.close(self._plans)
            self._plans = None
            self._discard_at = now + DISCARD_AFTER_S

    def keep_time(self, now: float) -> None:
        """Do what is due at `now`: discard interpreters whose job is over, and fork at most one process, so that the
        call is short."""
        if self._discard_at is not None and now >= self._discard_at:
            self._discard_at = None
            self._discard_all_but({"fork"})
        if self._refill_at is None or now < self._refill_at:
            return
        slot = self._missing()
        try:
            check_single_threaded()
            if slot is not None:
                self._warm.append(_fork_warm(slot, self._plans))
        except (OSError, ThreadsRunning) as error:
            log.warning("no forks are made ahead for now", reason=str(error))
            self._refill_at = None
            return
        self._refill_at = now if self._missing() is not None else None

    def _missing(self) -> RankSlot | None:
        """Return a wanted rank for which no process waits."""
        there = Counter(warm.kind for warm in self._warm)
        for slot in self._wanted:
            if slot.kind != "fork" and self._plans is None:
                continue
            there[slot.kind] -= 1
            if there[slot.kind] < 0:
                return slot
        return None

    def ended(self, pid: int, code: int) -> bool:
        """Return True if an exited process was in the reserve; it is not replaced before the next order."""
        for warm in self._warm:
            if warm.forked.pid == pid:
                log.warning("a fork made ahead ended", pid=pid, code=code)
                self._warm.remove(warm)
                close(warm)
                self._refill_at = None
                return True
        return False

    def _discard_all_but(self, kinds: set[str]) -> None:
        for warm in [warm for warm in self._warm if warm.kind not in kinds]:
            self._warm.remove(warm)
            self._discard(warm)

    def _discard(self, warm: Warm) -> None:
        os.kill(warm.forked.pid, signal.SIGKILL)
        os.waitpid(warm.forked.pid, 0)
        close(warm)


def hand_over(warm: Warm, slot: RankSlot, plans: int) -> bool:
    """Send a waiting process the plan of the rank that it becomes; return False if it does not take it whole."""
    body = framed(slot)
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, fileno=warm.orders)
    try:
        whole = socket.send_fds(link, [body], [plans]) == len(body)
    except (ConnectionError, BlockingIOError):
        whole = False
    link.detach()
    if whole:
        os.close(warm.orders)
    return whole


def close(warm: Warm) -> None:
    """Close what the zygote has of a waiting process."""
    for descriptor in (warm.orders, warm.forked.output, warm.forked.errors):
        os.close(descriptor)


def _fork_warm(slot: RankSlot, plans: int | None) -> Warm:
    if slot.kind == "fork" or plans is None:
        return fork_warm(slot.kind, await_plan)
    return fork_warm(slot.kind, partial(await_plan_as, slot, plans))


def fork_warm(kind: str, child: Callable[[int, int, int, int], NoReturn]) -> Warm:
    """Fork a process that waits for a plan. `child` is called there with the zygote's pid, the write ends of its pipes,
    and its end of the socket. Raises OSError.
    """
    orders, orders_write = (end.detach() for end in socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM))
    try:
        # A plan is sent whole or not at all: a process that does not read must not block the zygote.
        os.set_blocking(orders_write, False)
        with _Pipes() as pipes:
            ends = pipes.out_write, pipes.err_write, orders
            forked = pipes.forked(fork_child(lambda parent: child(parent, *ends)))
    except OSError:
        os.close(orders_write)
        raise
    finally:
        os.close(orders)
    return Warm(forked, orders_write, kind)


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
