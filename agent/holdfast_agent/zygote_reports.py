"""Reports of the zygote as inputs for the agent's decisions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
import structlog

from holdfast.decoding import UNREADABLE
from holdfast.engines.checks.warm_up import WarmUpResult
from holdfast.fresh_ids import uuid7
from holdfast_agent.companions.contexts import Contexts
from holdfast_agent.companions.rank_user import RankUser
from holdfast_agent.plan.inputs import (
    Input,
    LogAlertSeen,
    RankEnded,
    RanksRun,
    StartFailed,
    StopDone,
    StoreLost,
    WarmUpReported,
    ZygoteFound,
    ZygoteLost,
)
from holdfast_agent.plan.node_state import Crew, RankStatus
from holdfast_agent.watching.ledgers import moment
from holdfast_agent.watching.live_lines import LiveLines
from holdfast_agent.watching.watcher import Watcher
from holdfast_agent.zygote import wire

log = structlog.get_logger(__name__)


class ZygoteReports:
    """Receives the zygote's reports. `attached` is set once a zygote has answered; `on_welcome` is called each time."""

    def __init__(
        self,
        watcher: Watcher,
        lines: LiveLines,
        crew: Callable[[], Crew | None],
        learn: Callable[[Input], None],
        send: Callable[[wire.Command], None],
        rank_user: Callable[[], tuple[wire.Fence, RankUser]],
    ) -> None:
        """`rank_user` returns the fence of the ranks that were started last, and their user."""
        self._watcher = watcher
        self._lines = lines
        self._crew = crew
        self._learn = learn
        self._send = send
        self._rank_user = rank_user
        self.welcome: wire.Welcome | None = None
        self.attached = asyncio.Event()
        self.on_welcome: Callable[[], None] = lambda: None
        self.contexts: Contexts | None = None

    def take(self, report: wire.Report) -> None:
        match report:
            case wire.RankExit():
                # Its last steps and reports come before its exit.
                self._watcher.collect()
                if self.contexts is not None:
                    self.contexts.rank_ended(report)
                self._learn(self._rank_ended(report))
            case wire.RanksForked():
                if self.contexts is not None:
                    self.contexts.forked(report.with_context)
                self._learn(self._ranks_run(report))
            case wire.RanksEnded():
                self._watcher.collect()
                self._learn(
                    StopDone(
                        id=uuid7(),
                        number=report.number,
                        ranks=report.ranks,
                        killed=report.killed,
                        statuses=self._watcher.statuses(),
                    )
                )
            case wire.StartRefused():
                self._learn(StartFailed(id=uuid7(), fence=report.fence, reason=report.reason))
            case wire.StoreFailed():
                self._learn(StoreLost(id=uuid7(), fence=report.fence, reason=report.reason))
            case wire.WarmUpResults():
                self._learn(WarmUpReported(id=uuid7(), fence=report.fence, results=_results(report)))
            case wire.ContextReady() | wire.ContextGone():
                if self.contexts is not None:
                    self.contexts.take(report)
            case wire.Lines():
                self._lines.put(report)
            case wire.LogAlert():
                step = self._watcher.statuses().get(report.rank, RankStatus()).step
                self._learn(LogAlertSeen(id=uuid7(), alert=report, step=step))
            case wire.Welcome():
                self._attach(report)

    def lost(self) -> None:
        self.welcome = None
        self._watcher.collect()
        self._learn(ZygoteLost(id=uuid7(), statuses=self._watcher.statuses()))

    def _attach(self, welcome: wire.Welcome) -> None:
        self.welcome = welcome
        self._watcher.watch(self._crew())
        self._send(wire.FollowLines(ranks=(0,)))
        self._learn(
            ZygoteFound(
                id=uuid7(),
                live=welcome.ranks,
                ended=tuple(self._rank_ended(report) for report in welcome.exits),
                order=welcome.order,
                statuses=self._watcher.statuses(),
            )
        )
        self.on_welcome()
        self.attached.set()

    def _ranks_run(self, report: wire.RanksForked) -> RanksRun:
        fence, (user, reason) = self._rank_user()
        if fence != report.fence:
            user, reason = None, ""
        return RanksRun(
            id=uuid7(),
            fence=report.fence,
            pids=report.pids,
            took_s=report.took_s,
            user=user.name if user is not None else "",
            root_because=reason,
            with_context=report.with_context,
        )

    def _rank_ended(self, report: wire.RankExit) -> RankEnded:
        status = self._watcher.statuses().get(report.rank, RankStatus())
        return RankEnded(id=report.exit_id, exit=report, exited_at=moment(report.exited_ns), status=status)


def _results(report: wire.WarmUpResults) -> tuple[WarmUpResult, ...]:
    found = []
    for line in report.results:
        try:
            found.append(msgspec.json.decode(line, type=WarmUpResult))
        except UNREADABLE as error:
            log.warning("a result of the warm-up cannot be read", reason=str(error))
    return tuple(found)
