"""Spares: processes with a context, made beside training, one for each rank for which the agent wants one.

Making a context on an accelerator takes up to seconds, and no fork inherits one: so the process that makes it must
become the rank. A context takes memory of the device. So a spare is ended when it reports that training needs the
memory, when it is stopped and could not report that, and before ranks start that it cannot become.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import time
from collections.abc import Callable, Collection
from functools import partial

import msgspec
import structlog

from holdfast.node.frames import Frames, WireError
from holdfast.node.kernel import is_stopped
from holdfast.trainer.ahead.messages import (
    MESSAGE_BYTES_MAX,
    REASON_CHARS_MAX,
    ContextMade,
    ContextRefused,
    ContextReport,
)
from holdfast_agent.zygote.ahead.reserve import DISCARD_AFTER_S, Forked, close, fork_warm, hand_over
from holdfast_agent.zygote.fork_rank import await_plan_on_device
from holdfast_agent.zygote.preload import ThreadsRunning, check_single_threaded
from holdfast_agent.zygote.wire import ContextGone, ContextReady, MakeContext, RankSlot, Report

LOOK_EVERY_S = 1.0
READY_WITHIN_S = 60.0
"""Time for a context, imports of an interpreter included."""
GONE_WITHIN_S = 2.0
"""Time in which the driver should free what a killed process had, before others start."""
_PAUSE_S = 0.01
_OUTPUT_BYTES_MAX = 1 << 16

log = structlog.get_logger(__name__)


class Spare:
    """A process that has a context, or makes one."""

    def __init__(self, wanted: MakeContext, slot: RankSlot, plans: int) -> None:
        """Fork the process. Raises OSError."""
        self.wanted = wanted
        self.warm = fork_warm(wanted.kind, partial(await_plan_on_device, slot, plans, wanted))
        self.frames = Frames(msgspec.msgpack.Decoder(ContextReport), MESSAGE_BYTES_MAX)
        self.is_ready = False
        self.began = time.monotonic()

    @property
    def pid(self) -> int:
        return self.warm.forked.pid


class Spares:
    """The spares of one zygote."""

    def __init__(self, selector: selectors.BaseSelector, report: Callable[[Report], None]) -> None:
        self._selector = selector
        self._report = report
        self._spares: list[Spare] = []
        self._dying: set[int] = set()
        self._look_at: float | None = None
        self._rest_at: float | None = None

    @property
    def deadline(self) -> float | None:
        """Time of the next `keep_time` call (monotonic clock)."""
        return min((at for at in (self._look_at, self._rest_at) if at is not None), default=None)

    @property
    def pids(self) -> set[int]:
        return self._dying | {spare.pid for spare in self._spares}

    def make(self, wanted: MakeContext, slot: RankSlot, plans: int) -> None:
        """Begin to make a spare, unless it is there. `plans`: the file with the plans of the ranks that run."""
        if any(spare.wanted.rank == wanted.rank and spare.wanted.kind == wanted.kind for spare in self._spares):
            return
        try:
            check_single_threaded()
            spare = Spare(wanted, slot, plans)
        except (OSError, ThreadsRunning) as error:
            self._report(ContextGone(fence=wanted.fence, rank=wanted.rank, reason=str(error)))
            return
        self._spares.append(spare)
        self._selector.register(spare.warm.orders, selectors.EVENT_READ, spare)
        self._look_at = spare.began + LOOK_EVERY_S

    def pump(self, source: object) -> bool:
        """Receive what a spare reports; return False if the source is none."""
        if not isinstance(source, Spare):
            return False
        # An earlier event of this turn may have ended it.
        if source in self._spares:
            self._receive(source)
        return True

    def _receive(self, spare: Spare) -> None:
        try:
            data = os.read(spare.warm.orders, 1 << 12)
            reports = list(spare.frames.feed(data))
        except BlockingIOError:
            return
        except (WireError, ConnectionError) as error:
            self._end(spare, str(error))
            return
        if not data:
            self._end(spare, _how_it_ended(spare))
            return
        for report in reports:
            match report:
                case ContextMade():
                    spare.is_ready = True
                    self._report(
                        ContextReady(
                            fence=spare.wanted.fence,
                            rank=spare.wanted.rank,
                            # It runs as the job's user, so its numbers are not trusted.
                            took_s=report.took_s if 0 <= report.took_s <= READY_WITHIN_S else READY_WITHIN_S,
                            free_bytes=report.free_bytes,
                            host_bytes=report.host_bytes,
                        )
                    )
                case ContextRefused(reason=reason):
                    self._end(spare, reason)

    def take(self, slot: RankSlot, plans: int) -> Forked | None:
        """Turn a spare into this rank; return None if none can be used."""
        while slot.context and (spare := self._fit(slot)) is not None:
            self._forget(spare)
            # Its report of a lack of memory may be on its way: as a rank it needs this memory itself.
            if not is_stopped(spare.pid) and hand_over(spare.warm, slot, plans):
                return spare.warm.forked
            self._kill(spare)
            self._report_gone(spare, "it is stopped, or takes no plan")
        return None

    def _fit(self, slot: RankSlot) -> Spare | None:
        return next((one for one in self._spares if one.is_ready and one.wanted.kind == slot.context), None)

    def keep_only(self, kinds: Collection[str]) -> None:
        """End the spares that none of the ranks about to start can use, and wait a moment until their memory is free.

        A spare that is not ready yet is ended as well, without that wait: its rank makes a context itself.
        """
        self._rest_at = None
        for spare in [spare for spare in self._spares if spare.wanted.kind not in kinds]:
            self._end(spare, "ranks start that cannot use it")
        self._await_ends()
        for spare in list(self._spares):
            if not spare.is_ready or is_stopped(spare.pid):
                self._end(spare, "it is stopped" if spare.is_ready else "it came too late")

    def end_all(self, reason: str) -> None:
        for spare in list(self._spares):
            self._end(spare, reason)

    def rest(self, now: float) -> None:
        """End all spares after a while without ranks."""
        if self._spares:
            self._rest_at = now + DISCARD_AFTER_S

    def keep_time(self, now: float) -> None:
        """End spares that a signal has stopped, that take too long, or whose job has not come back."""
        if self._rest_at is not None and now >= self._rest_at:
            self._rest_at = None
            self.end_all("no ranks have started")
        if self._look_at is None or now < self._look_at:
            return
        for spare in list(self._spares):
            if is_stopped(spare.pid):
                self._end(spare, "it is stopped, and could not give its memory back")
            elif not spare.is_ready and now >= spare.began + READY_WITHIN_S:
                self._end(spare, f"it had no context after {READY_WITHIN_S:g} s")
        self._look_at = now + LOOK_EVERY_S if self._spares else None

    def ended(self, pid: int) -> bool:
        """Return True if an exited process was a spare."""
        if pid in self._dying:
            self._dying.discard(pid)
            return True
        for spare in self._spares:
            if spare.pid == pid:
                self._forget(spare)
                reason = _how_it_ended(spare)
                close(spare.warm)
                self._report_gone(spare, reason)
                return True
        return False

    def _end(self, spare: Spare, reason: str) -> None:
        self._forget(spare)
        self._kill(spare)
        self._report_gone(spare, reason)

    def _report_gone(self, spare: Spare, reason: str) -> None:
        log.info("a spare is gone", rank=spare.wanted.rank, pid=spare.pid, reason=reason)
        self._report(ContextGone(fence=spare.wanted.fence, rank=spare.wanted.rank, reason=reason))

    def _forget(self, spare: Spare) -> None:
        self._spares.remove(spare)
        self._selector.unregister(spare.warm.orders)

    def _kill(self, spare: Spare) -> None:
        # Not awaited: freeing a context takes the driver its time, and it may hang.
        with contextlib.suppress(ProcessLookupError):
            os.kill(spare.pid, signal.SIGKILL)
        self._dying.add(spare.pid)
        close(spare.warm)

    def _await_ends(self) -> None:
        until = time.monotonic() + GONE_WITHIN_S
        while self._dying and time.monotonic() < until:
            for pid in list(self._dying):
                try:
                    done, _ = os.waitpid(pid, os.WNOHANG)
                except ChildProcessError:
                    done = pid
                if done:
                    self._dying.discard(pid)
            if self._dying:
                time.sleep(_PAUSE_S)
        if self._dying:
            log.warning("killed spares have not ended, and may still hold memory of a device", pids=sorted(self._dying))


def _how_it_ended(spare: Spare) -> str:
    """Return the last line that a spare has written, for its output is not read before it is a rank."""
    errors = spare.warm.forked.errors
    os.set_blocking(errors, False)
    try:
        written = os.read(errors, _OUTPUT_BYTES_MAX).decode(errors="replace").split("\n")
    except BlockingIOError:
        written = []
    last = next((line.strip() for line in reversed(written) if line.strip()), "")
    return f"it ended by itself: {last[:REASON_CHARS_MAX]}" if last else "it ended by itself"
