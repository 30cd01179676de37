"""Watcher of the files that ranks write: ledgers (polled closely until the first step), reports and training logs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from typing import Any

import msgspec

from holdfast.bus import Message, event_message
from holdfast.clock import Now
from holdfast.events import Event, StepsMeasured
from holdfast.events.parts.samples import IterationSample, StepSample
from holdfast.events.parts.scalars import INTEGER_MAX
from holdfast.fresh_ids import uuid7
from holdfast.node.ledger.ledger_layout import RING_STEPS
from holdfast_agent.files.directories import Directories
from holdfast_agent.files.spool import Lane, Spool
from holdfast_agent.plan.devices.contexts import DeviceUsed
from holdfast_agent.plan.inputs import Input, Observed
from holdfast_agent.plan.node_state import Crew, RankStatus
from holdfast_agent.slow_tests.rings import IterationBook
from holdfast_agent.watching.ledgers import LedgerBook
from holdfast_agent.watching.logged_numbers import LoggedNumbers, LogsRead
from holdfast_agent.watching.reports import (
    ModelDescription,
    ReportFile,
    described_model,
    device_used,
    event_of,
    training_log,
)
from holdfast_agent.watching.stopped_ranks import StoppedRanks
from holdfast_agent.zygote.wire import Fence

FIRST_STEP_POLL_S = 0.01
"""Each look takes CPU time from ranks that start, a quarter of a millisecond for two of them."""
POLL_MIN_S = 0.05
POLL_MAX_S = 1.0
STEPS_PER_POLL = RING_STEPS // 4
"""A ledger keeps only its last steps: the faster they come, the sooner it must be read again."""
MEASURE_EVERY_S = 0.9 * POLL_MAX_S
SAMPLES_MAX = 2_000
"""Maximum number of samples in one event, far below the size limit of a message."""


def steps_key(job: str | None) -> str:
    """Return the spool key of the number of steps emitted for each rank of a job."""
    return f"steps:{job}"


def model_key(job: str | None) -> str:
    return f"model:{job}"


def logs_key(job: str | None) -> str:
    """Return the spool key of the read positions in a job's training logs."""
    return f"training-logs:{job}"


def reports_key(job: str | None) -> str:
    """Return the spool key of the read position in a job's reports."""
    return f"reports:{job}"


def checks_key(job: str | None) -> str:
    """Return the spool key of the read position in the reports of a job's checks."""
    return f"checks-reports:{job}"


def next_pause_s(pause_s: float, steps: int) -> float:
    """Return the next pause by the fastest rank's steps. It grows slowly: a rank that paused may soon be fast again."""
    fitting_s = pause_s * STEPS_PER_POLL / max(steps, 1)
    return min(max(min(fitting_s, 2 * pause_s), POLL_MIN_S), POLL_MAX_S)


class _StepsRead(msgspec.Struct, frozen=True, kw_only=True):
    """Number of steps emitted for each rank of an order."""

    fence: Fence
    steps_read: dict[int, int]


class Watcher:
    """Watches the files of the current crew. `on_commit` is called when messages wait in the spool."""

    def __init__(
        self,
        node: str,
        directories: Directories,
        spool: Spool,
        learn: Callable[[Input], None],
        cut_off_s: Callable[[], float | None],
        now: Now,
        reads_training_logs: bool = True,
    ) -> None:
        self._node = node
        self._directories = directories
        self._spool = spool
        self._learn = learn
        self._cut_off_s = cut_off_s
        self._now = now
        self._crew: Crew | None = None
        self._book = LedgerBook({})
        self._reports: ReportFile | None = None
        self._logged = LoggedNumbers(lambda: self._book) if reads_training_logs else None
        self._model: ModelDescription | None = None
        self._rings: IterationBook | None = None
        self._samples: list[StepSample] = []
        self._iterations: list[IterationSample] = []
        self._missed = 0
        self._measured_at: datetime | None = None
        self._stopped = StoppedRanks()
        self._crew_changed = asyncio.Event()
        self.on_commit: Callable[[], None] = lambda: None
        self.on_device_used: Callable[[int, DeviceUsed], None] = lambda rank, used: None

    def watch(self, crew: Crew | None) -> None:
        """Watch this crew from now on, after collecting the last output of the one before."""
        before = self._crew
        if crew is not None and before is not None and before.order.fence == crew.order.fence:
            self._crew = crew
            if self._logged is not None:
                self._logged.watch(crew)
            self._crew_changed.set()
            return
        self._take()
        self._measure()
        self._crew = crew
        self._book.close()
        if self._rings is not None:
            self._rings.close()
            self._rings = None
        order = crew.order if crew is not None else None
        job = order.job if order is not None else None
        if crew is None or order is None or job is None:
            self._book = LedgerBook({})
            self._reports = None
        else:
            fence = order.fence
            paths = {rank: self._directories.ledger(job, fence, rank) for rank in crew.ranks}
            self._book = LedgerBook(paths, self._steps_read(job, fence))
            if crew.trains and crew.ranks:
                self._rings = IterationBook(crew.ranks[0], paths[crew.ranks[0]])
            purpose = crew.order.placement.purpose if crew.order.placement is not None else "train"
            remembered = self._spool.recall(_position_key(crew))
            self._reports = ReportFile(self._directories.reports(job, purpose), int(remembered or b"0"))
        described = self._spool.recall(model_key(job))
        self._model = msgspec.json.decode(described, type=ModelDescription) if described else None
        if self._logged is not None:
            self._logged.watch(crew, self._logs_read(job))
        self._crew_changed.set()

    def statuses(self) -> dict[int, RankStatus]:
        return self._book.statuses()

    def collect(self) -> None:
        self._take()
        self._observe()
        self._measure()

    async def run(self) -> None:
        pause_s = POLL_MIN_S
        while True:
            crew = self._crew
            self._crew_changed.clear()
            if crew is None or not crew.stepped:
                # The pace of the next crew is unknown.
                pause_s = POLL_MIN_S
            if crew is None or not crew.pids:
                await self._crew_changed.wait()
                continue
            self._observe()
            if crew.stepped:
                pause_s = next_pause_s(pause_s, self._take())
                if self._is_due():
                    self._measure()
            elif not crew.trains:
                # Checks and replays have no first step to wait for; their results are collected as they come.
                self._take_reports()
            try:
                async with asyncio.timeout(pause_s if crew.stepped or not crew.trains else FIRST_STEP_POLL_S):
                    await self._crew_changed.wait()
            except TimeoutError:
                continue

    def _observe(self) -> None:
        crew = self._crew
        if crew is not None and crew.pids:
            statuses = self._book.statuses()
            stopped = self._stopped.look(crew.order.fence, crew.pids, statuses, self._now())
            seen = Observed(id=uuid7(), statuses=statuses, cut_off_s=self._cut_off_s(), stopped=stopped)
            if not crew.stepped:
                # What ranks reported before their first step is published before it.
                self._take_reports()
            self._learn(seen)

    def _is_due(self) -> bool:
        return self._measured_at is None or (self._now() - self._measured_at).total_seconds() >= MEASURE_EVERY_S

    def _take(self) -> int:
        """Collect new steps, numbers and reports; return the number of steps of the fastest rank."""
        samples, missed = self._book.new_samples()
        self._samples.extend(samples)
        self._missed += missed
        if self._rings is not None:
            self._iterations.extend(self._rings.new_iterations())
        if self._logged is not None:
            self._logged.note_steps(samples)
            self._logged.take()
        self._take_reports()
        return max(Counter(sample.rank for sample in samples).values(), default=0)

    def _steps_read(self, job: str, fence: Fence) -> dict[int, int]:
        remembered = self._spool.recall(steps_key(job))
        read = msgspec.json.decode(remembered, type=_StepsRead) if remembered else None
        return read.steps_read if read is not None and read.fence == fence else {}

    def _logs_read(self, job: str | None) -> LogsRead | None:
        remembered = self._spool.recall(logs_key(job))
        return msgspec.json.decode(remembered, type=LogsRead) if remembered else None

    def _measure(self) -> None:
        """Emit the steps done since the last call and commit the position with them: no step is emitted twice."""
        self._measured_at = self._now()
        if self._crew is None:
            return
        order = self._crew.order
        common: dict[str, Any] = {
            "at": self._measured_at,
            "source": f"agent/{self._node}",
            "node": self._node,
            "job": order.job,
            "generation": order.generation,
            "cause": order.cause,
        }
        logged, logs_read = self._logged.take_events(common) if self._logged is not None else ([], None)
        if not (self._samples or self._missed or self._iterations or logs_read):
            return
        measured: list[Message] = []
        read = _StepsRead(fence=order.fence, steps_read=self._book.steps_read())
        before = sum(read.steps_read.values()) - len(self._samples) - self._missed
        while self._samples or self._missed or self._iterations:
            batch, self._samples = self._samples[:SAMPLES_MAX], self._samples[SAMPLES_MAX:]
            iterations, self._iterations = self._iterations[:SAMPLES_MAX], self._iterations[SAMPLES_MAX:]
            event = StepsMeasured(
                id=uuid7(),
                **common,
                samples=tuple(batch),
                missed=min(self._missed, INTEGER_MAX),
                before=max(0, min(before, INTEGER_MAX)),
                world_size=order.placement.job.nnodes * order.placement.job.nproc_per_node if order.placement else 0,
                flops_per_token=self._model.flops_per_token if self._model else None,
                peak_flops=self._model.peak_flops if self._model else None,
                iterations=tuple(iterations),
            )
            before += len(batch) + self._missed
            self._missed = 0
            measured.append(event_message(event))
        # Logged numbers come after the steps that they refer to.
        measured += [event_message(event) for event in logged]
        memory = {steps_key(order.job): msgspec.json.encode(read)}
        if logs_read is not None:
            memory[logs_key(order.job)] = msgspec.json.encode(logs_read)
        self._spool.commit(measured, memory, lane=Lane.MEASUREMENTS)
        self._spool.forget_measurements()
        self.on_commit()

    def _take_reports(self) -> None:
        reports, crew = self._reports, self._crew
        if reports is None or crew is None or crew.order.job is None:
            return
        before = reports.offset
        events: list[Event] = []
        memory: dict[str, bytes] = {}
        for report in reports.read():
            path = training_log(report)
            is_now = crew.trains and report.generation == crew.order.generation
            if path is not None and self._logged is not None and is_now:
                memory[logs_key(crew.order.job)] = msgspec.json.encode(self._logged.add_reported(report.rank, path))
            if is_now and (used := device_used(report)) is not None:
                self.on_device_used(report.rank, used)
            model = described_model(report)
            if model is not None and crew.trains:
                self._model = model
                memory[model_key(crew.order.job)] = msgspec.json.encode(model)
            if (event := event_of(report, crew.order, self._node, self._now())) is not None:
                events.append(event)
        if reports.offset != before:
            memory[_position_key(crew)] = str(reports.offset).encode()
            self._spool.commit([event_message(event) for event in events], memory)
            self.on_commit()


def _position_key(crew: Crew) -> str:
    placement = crew.order.placement
    is_checked = placement is not None and placement.purpose == "checks"
    return (checks_key if is_checked else reports_key)(crew.order.job)
