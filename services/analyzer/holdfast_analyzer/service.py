"""The analyzer as a decider: windows in memory, findings out. Samples never pass through Postgres on their way."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from holdfast.events import (
    AnyEvent,
    BadNumber,
    JobFinished,
    MfuDeclined,
    NumbersLogged,
    StepsCertified,
    StepsMeasured,
    StepTimeMeasured,
    ThroughputMeasured,
)
from holdfast.finished_jobs import FinishedJobs
from holdfast.policies import CorruptionPolicy, SignalsPolicy
from holdfast.service import Decider, Effect, Row
from holdfast_analyzer.bad_numbers import BadNumbers, Known
from holdfast_analyzer.step_time import StepTimes, observe
from holdfast_analyzer.store import KNOWN, TABLES
from holdfast_analyzer.throughput import Throughput


class Analyzer(Decider):
    """Holds the windows of all jobs; see `holdfast.service.Decider`.

    They refill within seconds, so they are not stored; only what was found by them and will not be seen again.
    """

    name = "analyzer"
    handles = (StepsMeasured, NumbersLogged, JobFinished)
    tables = TABLES

    def __init__(self, policy: CorruptionPolicy | None = None, signals: SignalsPolicy | None = None) -> None:
        self._policy = policy or CorruptionPolicy()
        self._signals = signals or SignalsPolicy()
        self._throughput: dict[str, Throughput] = {}
        self._step_times: dict[str, StepTimes] = {}
        self._numbers: dict[str, BadNumbers] = {}
        self._known: dict[str, Known] = {}
        self._finished = FinishedJobs()
        self._uncommitted: dict[str, tuple[str, StepTimes]] = {}

    def load(self, rows: Mapping[str, Mapping[str, Any]]) -> None:
        self._known = dict(rows[KNOWN.name])

    def on_event(self, event: AnyEvent, now: datetime) -> Effect:
        if event.job is None:
            return Effect()
        if isinstance(event, JobFinished):
            self._step_times.pop(event.job, None)
            self._numbers.pop(event.job, None)
            self._throughput.pop(event.job, None)
            self._finished.add(event.job)
            return Effect(rows=(Row(table=KNOWN, key=event.job, row=None),) if event.job in self._known else ())
        if event.job in self._finished:
            return Effect()
        if isinstance(event, NumbersLogged):
            numbers = self._numbers_of(event.job)
            numbers.take_logged(event)
            self._throughput_of(event.job).take_logged(event)
            return self._found(event.job, event.id, now)
        if isinstance(event, StepsMeasured):
            return self._measured(event.job, event, now)
        return Effect()

    def adopt(self, effect: Effect) -> None:
        for row in effect.rows:
            if isinstance(row.row, Known):
                self._known[row.key] = row.row
                self._numbers[row.key].kept(row.row)
            else:
                self._known.pop(row.key, None)
        for event in effect.events:
            if isinstance(event, StepTimeMeasured):
                job, times = self._uncommitted.pop(event.id)
                self._step_times[job] = times
            elif isinstance(event, BadNumber | StepsCertified) and event.job is not None:
                self._numbers[event.job].said(event)
            elif isinstance(event, ThroughputMeasured | MfuDeclined) and event.job is not None:
                self._throughput[event.job].said(event)

    def _measured(self, job: str, event: StepsMeasured, now: datetime) -> Effect:
        numbers = self._numbers_of(job)
        numbers.take(event)
        self._throughput_of(job).take(event)
        effect = self._found(job, event.id, now)
        times, measured = observe(self._step_times.get(job), event, now)
        if measured is None:
            self._step_times[job] = times
            return effect
        # Until the finding is committed the window stays as it was, or a second try would see nothing new.
        self._uncommitted[measured.id] = (job, times)
        return Effect(rows=effect.rows, events=(measured, *effect.events))

    def _numbers_of(self, job: str) -> BadNumbers:
        numbers = self._numbers.get(job)
        if numbers is None:
            numbers = self._numbers[job] = BadNumbers(job, self._policy, self._known.get(job))
        return numbers

    def _throughput_of(self, job: str) -> Throughput:
        if job not in self._throughput:
            self._throughput[job] = Throughput(job, self._signals)
        return self._throughput[job]

    def _found(self, job: str, cause: str, now: datetime) -> Effect:
        numbers = self._numbers_of(job)
        found = numbers.findings(cause, now)
        rows = (Row(table=KNOWN, key=job, row=numbers.known()),) if found or numbers.has_news else ()
        return Effect(rows=rows, events=(*found, *self._throughput_of(job).findings(cause, now)))
