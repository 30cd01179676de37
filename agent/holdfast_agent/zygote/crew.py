"""The zygote's ranks: started, watched, and ended with all their descendants.

The zygote is the subreaper of its ranks: processes that a rank leaves behind become its children. So it only signals
direct children and the groups of unreaped ranks, whose pids cannot have been reused.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import structlog

from holdfast.events.parts.launch import STREAMS
from holdfast.fresh_ids import uuid7
from holdfast.node.kernel import ignores, is_stopped, own_children
from holdfast_agent.plan.log_lines.log_alerts import LogAlerts
from holdfast_agent.plan.log_lines.log_signatures import Scanner, Signature
from holdfast_agent.zygote.ahead.reserve import Reserve, fork_rank
from holdfast_agent.zygote.ahead.spares import Spares
from holdfast_agent.zygote.copy_file import CopyFile
from holdfast_agent.zygote.exception_files import read_exception, write_error
from holdfast_agent.zygote.preload import ThreadsRunning, check_single_threaded
from holdfast_agent.zygote.rank_logs import LineSink, Output, RotatingFile, Tail
from holdfast_agent.zygote.wire import (
    ERROR_COPY,
    ContextGone,
    Fence,
    Lines,
    LiveRank,
    LogAlert,
    MakeContext,
    Part,
    RankExit,
    RanksEnded,
    RanksForked,
    RankSlot,
    Report,
    StartPlanned,
    StartRefused,
    StopRanks,
)

log = structlog.get_logger(__name__)


class _Rank:
    """A rank's process and its two pipes."""

    def __init__(
        self, slot: RankSlot, fence: Fence, pid: int, outputs: dict[str, Output], tail: Tail, *, has_context: bool
    ) -> None:
        self.slot = slot
        self.fence = fence
        self.pid = pid
        self.outputs = outputs
        self.tail = tail
        self.has_context = has_context


class _Plans(NamedTuple):
    """The file of the ranks' plans, and the place of their order in it."""

    order: Part
    descriptor: int


class _Stop:
    def __init__(self, command: StopRanks, ranks: tuple[int, ...]) -> None:
        self.number = command.number
        self.ranks = ranks
        self.began = time.monotonic()
        self.began_ns = time.time_ns()
        self.kill_at = self.began + command.grace_s
        self.killed: set[int] = set()


class Crew:
    """Ranks, their output and exits. `bystanders`: the zygote's other children; log alerts await `has_agent`."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        report: Callable[[Report], None],
        bystanders: Callable[[], set[int]],
        on_bystander_exit: Callable[[int, int], None],
        has_agent: Callable[[], bool],
    ) -> None:
        self._selector = selector
        self._report = report
        self._reserve = Reserve()
        self.spares = Spares(selector, report)
        self._bystanders = bystanders
        self._on_bystander_exit = on_bystander_exit
        self._ranks: dict[int, _Rank] = {}
        self._left_over: list[Output] = []
        self._stop: _Stop | None = None
        self._followed: frozenset[int] = frozenset()
        self._has_agent = has_agent
        self._log_alerts = LogAlerts()
        self._alerts_fence: Fence = (-1, -1)
        self._scanners: list[Scanner] = []
        self._plans: _Plans | None = None
        self.exits: dict[str, RankExit] = {}

    @property
    def live(self) -> tuple[LiveRank, ...]:
        ranks = sorted(self._ranks.values(), key=lambda rank: rank.slot.rank)
        return tuple(LiveRank(rank=rank.slot.rank, pid=rank.pid, fence=rank.fence) for rank in ranks)

    @property
    def deadline(self) -> float | None:
        """Time of the next `keep_time` call (monotonic clock)."""
        if self._stop is None:
            alerts_at = self._log_alerts.due_at if self._has_agent() else None
            deadlines = (
                self._reserve.deadline,
                self.spares.deadline,
                alerts_at,
                *(scanner.due_at for scanner in self._scanners),
            )
            return min((at for at in deadlines if at is not None), default=None)
        return self._stop.kill_at if self._ranks else None

    def order(self) -> tuple[Part, int] | tuple[None, None]:
        """Return the place of the live ranks' order in the file of plans, and a new descriptor of that file."""
        return (self._plans.order, os.dup(self._plans.descriptor)) if self._plans is not None else (None, None)

    @property
    def stopping(self) -> bool:
        return self._stop is not None

    def start(self, command: StartPlanned, plans: int) -> None:
        """Fork the ranks, all or none. `plans`, the descriptor of their plans, is closed when no rank is left."""
        began = time.monotonic()
        if self._ranks or self._stop is not None:
            os.close(plans)
            fence = next((rank.fence for rank in self._ranks.values()), None)
            self._refuse(command.fence, f"ranks of an earlier order ({fence}) are still there")
            return
        self._log_alerts, self._alerts_fence, self._scanners = LogAlerts(), command.fence, []
        self._close_plans()
        self._plans = _Plans(command.order, plans)
        self.spares.keep_only({slot.context for slot in command.ranks})
        try:
            check_single_threaded()
            for slot in command.ranks:
                rank = self._fork(slot, command.fence, plans)
                self._ranks[rank.pid] = rank
        except (OSError, ThreadsRunning) as error:
            for rank in list(self._ranks.values()):
                self._discard(rank)
            self._close_plans()
            self._refuse(command.fence, f"a rank could not be forked: {error}")
            return
        self._reserve.want(command.ranks, plans, time.monotonic())
        pids = {rank.slot.rank: rank.pid for rank in self._ranks.values()}
        took_s, with_context = time.monotonic() - began, sum(rank.has_context for rank in self._ranks.values())
        self._report(RanksForked(fence=command.fence, pids=pids, took_s=took_s, with_context=with_context))

    def _refuse(self, fence: Fence, reason: str) -> None:
        log.error("ranks not started", fence=fence, reason=reason)
        self._report(StartRefused(fence=fence, reason=reason))

    def _close_plans(self) -> None:
        if self._plans is not None:
            os.close(self._plans.descriptor)
            self._plans = None
            self._reserve.rest(time.monotonic())
            self.spares.rest(time.monotonic())

    def make_context(self, wanted: MakeContext) -> None:
        """Make a spare for a rank that runs."""
        rank = next((rank for rank in self._ranks.values() if rank.slot.rank == wanted.rank), None)
        if rank is None or rank.fence != wanted.fence or not rank.slot.kind or self._plans is None or self.stopping:
            self._report(ContextGone(fence=wanted.fence, rank=wanted.rank, reason="no such rank runs"))
            return
        self.spares.make(wanted, rank.slot, self._plans.descriptor)

    def _fork(self, slot: RankSlot, fence: Fence, plans: int) -> _Rank:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(slot.error_file)
        spare = self.spares.take(slot, plans)
        forked = spare or self._reserve.take(slot, plans) or fork_rank(slot, plans)
        tail = Tail()
        outputs = {
            stream: Output(
                pipe,
                RotatingFile(Path(f"{slot.log_stem}.{stream}")),
                tail,
                self._scanner(slot, stream),
                CopyFile(Path(slot.copies[stream]), slot.user) if stream in slot.copies else None,
            )
            for stream, pipe in (("out", forked.output), ("err", forked.errors))
        }
        rank = _Rank(slot, fence, forked.pid, outputs, tail, has_context=spare is not None)
        self._set_follower(rank)
        for output in outputs.values():
            self._selector.register(output.descriptor, selectors.EVENT_READ, output)
        return rank

    def _discard(self, rank: _Rank) -> None:
        """Undo a start: kill the forked ranks without reporting their exits."""
        _signal_group(rank.pid, signal.SIGKILL)
        os.waitpid(rank.pid, 0)
        del self._ranks[rank.pid]
        for output in rank.outputs.values():
            self._close(output)

    def follow(self, ranks: tuple[int, ...]) -> None:
        """Report the output lines of these ranks from now on."""
        self._followed = frozenset(ranks)
        for rank in self._ranks.values():
            self._set_follower(rank)

    def pump(self, output: Output) -> None:
        if not output.pump():
            self._close(output)

    def _set_follower(self, rank: _Rank) -> None:
        for stream, output in rank.outputs.items():
            is_followed = rank.slot.rank in self._followed or rank.slot.shown & STREAMS[stream]
            output.follower = self._line_sink(rank, stream) if is_followed else None

    def _line_sink(self, rank: _Rank, stream: str) -> LineSink:
        number, fence = rank.slot.rank, rank.fence

        def send(lines: list[str], is_open: bool) -> None:
            self._report(Lines(fence=fence, rank=number, stream=stream, lines=tuple(lines), is_open=is_open))

        return send

    def _scanner(self, slot: RankSlot, stream: str) -> Scanner:
        alerts, rank = self._log_alerts, slot.rank

        def on_match(signature: Signature, line: str) -> None:
            alerts.add(rank, stream, signature, line)

        scanner = Scanner(on_match)
        self._scanners.append(scanner)
        return scanner

    def _report_log_alerts(self, now: float) -> None:
        for scanner in self._scanners:
            if (due_at := scanner.due_at) is not None and due_at <= now:
                scanner.look(now)
        if not self._has_agent():
            return
        for alert in self._log_alerts.take_due(now):
            self._report(
                LogAlert(
                    fence=self._alerts_fence,
                    rank=alert.key.rank,
                    stream=alert.key.stream,
                    signature=alert.key.signature,
                    symptom=alert.symptom,
                    lines=alert.lines,
                    count=alert.occurrences,
                )
            )

    def _close(self, output: Output) -> None:
        if output.descriptor in self._selector.get_map():
            self._selector.unregister(output.descriptor)
            output.close()
        if output in self._left_over:
            self._left_over.remove(output)

    def reap(self) -> None:
        while True:
            try:
                # Inspect before reaping: until then the process group cannot be reused.
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                break
            if ended is None:
                break
            rank = self._ranks.get(ended.si_pid)
            if rank is not None and (ended.si_status != 0 or self._stop is not None):
                _signal_group(ended.si_pid, signal.SIGKILL)
            _, status = os.waitpid(ended.si_pid, 0)
            if rank is not None:
                self._rank_ended(rank, os.waitstatus_to_exitcode(status))
            elif not (
                self.spares.ended(ended.si_pid) or self._reserve.ended(ended.si_pid, os.waitstatus_to_exitcode(status))
            ):
                self._on_bystander_exit(ended.si_pid, os.waitstatus_to_exitcode(status))
        self._advance_stop()

    def _rank_ended(self, rank: _Rank, code: int) -> None:
        exited_ns = time.time_ns()
        del self._ranks[rank.pid]
        if not self._ranks:
            self._close_plans()
        for output in rank.outputs.values():
            if output.descriptor not in self._selector.get_map():
                continue
            if output.pump():
                # A child of the rank still holds the pipe.
                self._left_over.append(output)
            else:
                self._close(output)
        exception = None
        if self._stop is not None:
            # A rank that failed by itself and was slow to exit is still at fault; what it raises after SIGTERM is not.
            exception = read_exception(Path(rank.slot.error_file), before_ns=self._stop.began_ns)
            if exception is None:
                return
        elif code > 0:
            exception = read_exception(Path(rank.slot.error_file))
        if exception is not None and ERROR_COPY in rank.slot.copies:
            write_error(rank.slot, exception, exited_ns)
        exit_report = RankExit(
            exit_id=uuid7(),
            fence=rank.fence,
            rank=rank.slot.rank,
            local_rank=rank.slot.local_rank,
            pid=rank.pid,
            exit_code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            exited_ns=exited_ns,
            log_tail=rank.tail.text(),
            exception=exception,
        )
        self.exits[exit_report.exit_id] = exit_report
        self._report(exit_report)

    def stop(self, command: StopRanks) -> None:
        """Start to end all processes; `RanksEnded` is reported when none is left."""
        self._stop = _Stop(command, tuple(rank.rank for rank in self.live))
        for rank in self._ranks.values():
            hurried = rank.slot.rank in command.at_once or not command.grace_s
            if hurried or is_stopped(rank.pid) or ignores(rank.pid, signal.SIGTERM):
                self._kill(rank)
            else:
                _signal_group(rank.pid, signal.SIGTERM)
        self._advance_stop()

    def keep_time(self, now: float) -> None:
        """Act on an expired grace, refill the reserve, look at spares, report log alerts."""
        self._report_log_alerts(now)
        self.spares.keep_time(now)
        if self._stop is None:
            self._reserve.keep_time(now)
            return
        if now < self._stop.kill_at:
            return
        for rank in self._ranks.values():
            self._kill(rank)
        # A process that hangs inside the kernel survives SIGKILL; it is checked again from time to time.
        self._stop.kill_at = now + 1.0

    def _kill(self, rank: _Rank) -> None:
        if self._stop is not None:
            self._stop.killed.add(rank.slot.rank)
        _signal_group(rank.pid, signal.SIGKILL)

    def _advance_stop(self) -> None:
        if self._stop is None or self._ranks:
            return
        strays = set(own_children()) - self._bystanders() - self._reserve.pids - self.spares.pids
        for pid in strays:
            # Their exits raise SIGCHLD, which leads back here until no orphan is left.
            os.kill(pid, signal.SIGKILL)
        if strays:
            return
        for output in list(self._left_over):
            output.pump()
            self._close(output)
        stop, self._stop = self._stop, None
        self._report(
            RanksEnded(
                number=stop.number,
                ranks=stop.ranks,
                killed=len(stop.killed),
                took_s=time.monotonic() - stop.began,
            )
        )


def _signal_group(pid: int, number: signal.Signals) -> None:
    """Signal an unreaped child and its process group."""
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        # It has not called `setsid` yet.
        os.kill(pid, number)
