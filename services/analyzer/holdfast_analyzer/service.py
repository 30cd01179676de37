"""The analyzer as a decider: windows in memory, findings out. Samples never pass through Postgres on their way."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from holdfast.daemon.finished_jobs import FinishedJobs
from holdfast.daemon.service_shell import Decider
from holdfast.effects import Effect, RowWrite
from holdfast.events import (
    AnyEvent,
    BadNumber,
    CollectivesProfiled,
    CollectiveTrace,
    Event,
    HangSuspected,
    JobFinished,
    LogSignature,
    MfuDeclined,
    NumbersLogged,
    Progress,
    RanksFinished,
    SlownessTested,
    StackDump,
    StepsCertified,
    StepsMeasured,
    StepTimeMeasured,
    TelemetryAnomaly,
    TelemetryMeasured,
    ThroughputMeasured,
)
from holdfast.orders.node import SlowWanted, TraceWanted
from holdfast.requests import ANALYZER_REQUESTS, Answer, AnyRequest, KeepModel, LocateSlowness, TraceJob
from holdfast.settings.corruption import CorruptionPolicy
from holdfast.settings.hang import HangPolicy
from holdfast.settings.signals import SignalsPolicy
from holdfast.settings.slow import SlowPolicy
from holdfast.settings.telemetry import TelemetryPolicy
from holdfast_analyzer.engines.bad_numbers.bad_numbers import BadNumbers, Known
from holdfast_analyzer.engines.hang.hangs import Hangs, Said
from holdfast_analyzer.engines.slow.fail_slow import FailSlow
from holdfast_analyzer.engines.step_time import StepTimes, observe, p99_s
from holdfast_analyzer.engines.telemetry.telemetry import Telemetries
from holdfast_analyzer.engines.throughput import Throughput
from holdfast_analyzer.store import KNOWN, MODELS, TABLES

NODES_SHOWN = 8
OLD = timedelta(seconds=30)
"""Where ranks stood longer ago says nothing of now: the stream keeps a day of it, for a process that was away."""


class Analyzer(Decider):
    """Holds the windows of all jobs; see `holdfast.daemon.service_shell.Decider`.

    They refill within seconds, so they are not stored; only what was found by them and will not be seen again.
    """

    name = "analyzer"
    handles = (
        StepsMeasured,
        NumbersLogged,
        JobFinished,
        Progress,
        RanksFinished,
        StackDump,
        CollectiveTrace,
        CollectivesProfiled,
        SlownessTested,
        TelemetryMeasured,
        LogSignature,
    )
    tables = TABLES
    requests_subject = ANALYZER_REQUESTS

    def __init__(
        self,
        policy: CorruptionPolicy | None = None,
        signals: SignalsPolicy | None = None,
        hang: HangPolicy | None = None,
        slow: SlowPolicy | None = None,
        telemetry: TelemetryPolicy | None = None,
    ) -> None:
        self._policy = policy or CorruptionPolicy()
        self._signals = signals or SignalsPolicy()
        self._hang = hang or HangPolicy()
        self._hangs: dict[str, Hangs] = {}
        self._slow = slow or SlowPolicy()
        self._fail_slow: dict[str, FailSlow] = {}
        self._telemetry = Telemetries(telemetry or TelemetryPolicy())
        self._to_commit: dict[str, tuple[str, Said]] = {}
        self._throughput: dict[str, Throughput] = {}
        self._step_times: dict[str, StepTimes] = {}
        self._numbers: dict[str, BadNumbers] = {}
        self._known: dict[str, Known] = {}
        self._finished = FinishedJobs()
        self._uncommitted: dict[str, tuple[str, StepTimes]] = {}

    def load(self, rows: Mapping[str, Mapping[str, Any]]) -> None:
        self._known = dict(rows[KNOWN.name])
        self._telemetry.load(rows[MODELS.name])

    def on_event(self, event: AnyEvent, now: datetime) -> Effect:
        if event.job is None:
            return Effect()
        if isinstance(event, JobFinished):
            self._step_times.pop(event.job, None)
            self._numbers.pop(event.job, None)
            self._throughput.pop(event.job, None)
            self._hangs.pop(event.job, None)
            self._to_commit.pop(event.job, None)
            self._fail_slow.pop(event.job, None)
            self._telemetry.forget(event.job)
            self._finished.add(event.job)
            return Effect(rows=(RowWrite(table=KNOWN, key=event.job, row=None),) if event.job in self._known else ())
        if event.job in self._finished:
            return Effect()
        if isinstance(event, TelemetryMeasured | LogSignature):
            self._telemetry.take(event.job, event)
            return Effect()
        if isinstance(event, Progress | RanksFinished | StackDump | CollectiveTrace):
            return self._traced(event.job, event, now)
        if isinstance(event, CollectivesProfiled | SlownessTested):
            return self._told_of_slowness(event.job, event, now)
        if isinstance(event, NumbersLogged):
            numbers = self._numbers_of(event.job)
            numbers.take_logged(event)
            self._throughput_of(event.job).take_logged(event)
            return self._found(event.job, event.id, now)
        if isinstance(event, StepsMeasured):
            return self._measured(event.job, event, now)
        return Effect()

    def on_request(self, request: AnyRequest, now: datetime) -> Effect:
        if isinstance(request, LocateSlowness):
            return self._locate(request, now)
        if isinstance(request, KeepModel):
            return self._telemetry.keep(request)
        if not isinstance(request, TraceJob):
            return super().on_request(request, now)
        hangs = self._hangs.get(request.job)
        if refusal := self._refused(request.job, hangs, now):
            return Effect(answer=Answer(accepted=False, message=refusal))
        assert hangs is not None
        if hangs.asked is not None and hangs.asked.wanted.id == request.id:
            return Effect()
        return self._effect(request.job, hangs.by_hand(request.id, request.asked_by, now, native=request.native))

    def on_time(self, now: datetime, hearing_since: datetime | None) -> Effect:
        due = [_slow_effect(slow, now) for slow in self._fail_slow.values()]
        if hearing_since is not None:
            due += [
                self._effect(job, hangs.due(self._long_step_s(job), now, hearing_since))
                for job, hangs in self._hangs.items()
            ]
        return Effect(
            events=(*(event for effect in due for event in effect.events), *self._telemetry.findings(now)),
            orders=tuple(order for effect in due for order in effect.orders),
        )

    def adopt(self, effect: Effect) -> None:
        for said in (*effect.events, *effect.orders):
            # What was said of a job that is over by now has nobody to take it.
            if (job := said.job) is not None and (slow := self._fail_slow.get(job)) is not None:
                slow.said(said)  # type: ignore[arg-type]
        for row in effect.rows:
            if row.table is MODELS:
                self._telemetry.adopt(row)
            elif isinstance(row.row, Known):
                self._known[row.key] = row.row
                self._numbers[row.key].kept(row.row)
            else:
                self._known.pop(row.key, None)
        for said in (*effect.events, *effect.orders):
            if not isinstance(said, Event | TraceWanted) or said.job is None:
                continue
            if self._to_commit.get(said.job, ("",))[0] == said.id:
                self._hangs[said.job].committed(self._to_commit.pop(said.job)[1])
        for event in effect.events:
            if isinstance(event, StepTimeMeasured):
                job, times = self._uncommitted.pop(event.id)
                self._step_times[job] = times
            elif isinstance(event, BadNumber | StepsCertified) and event.job is not None:
                self._numbers[event.job].said(event)
            elif isinstance(event, TelemetryAnomaly):
                self._telemetry.said(event)
            elif isinstance(event, HangSuspected) and (slow := self._fail_slow.get(event.job or "")) is not None:
                slow.break_off_rounds()
            elif isinstance(event, ThroughputMeasured | MfuDeclined) and event.job is not None:
                self._throughput[event.job].said(event)
                if isinstance(event, MfuDeclined):
                    self._slowness_of(event.job).declined(event)

    def _traced(self, job: str, event: Progress | RanksFinished | StackDump | CollectiveTrace, now: datetime) -> Effect:
        if now - event.at > OLD:
            return Effect()
        slow = self._fail_slow.get(job)
        if slow is not None and isinstance(event, StackDump | CollectiveTrace) and slow.take_stacks(event):
            return _slow_effect(slow, now)
        hangs = self._hangs.get(job)
        if hangs is None:
            hangs = self._hangs[job] = Hangs(job, self._hang)
        hangs.take(event, now)
        # A node's pace is told twice a second by the time; an answer shall not wait for that.
        if isinstance(event, Progress | RanksFinished):
            return Effect()
        return self._effect(job, hangs.answered(self._long_step_s(job), now))

    def _long_step_s(self, job: str) -> float | None:
        times = self._step_times.get(job)
        return p99_s(times) if times else None

    def _effect(self, job: str, said: Said | None) -> Effect:
        if said is None:
            return Effect()
        if not (said.events or said.orders):
            self._hangs[job].committed(said)
            return Effect()
        # Until it is committed the job stays as it was; what is said first stands for all of it.
        self._to_commit[job] = (said.events[0].id if said.events else said.orders[0].id, said)
        return Effect(events=said.events, orders=said.orders)

    def _refused(self, job: str, hangs: Hangs | None, now: datetime) -> str:
        if job in self._finished:
            return f"job {job} is over: nothing of it runs any more"
        if hangs is None:
            return f"no agent tells of a job {job} that trains; `holdfast jobs` lists the jobs"
        if hangs.asked is not None:
            return f"job {job} is being traced just now; ask again in a few seconds"
        if hangs.watch.is_heard(now):
            return ""
        if silent := hangs.watch.silent(now):
            shown = ", ".join((*silent[:NODES_SHOWN], *(["..."] if len(silent) > NODES_SHOWN else [])))
            who = (
                f"{len(silent)} of {len(hangs.watch.nodes)} nodes of job {job} tell nothing of their ranks now: {shown}"
            )
        else:
            who = f"only {hangs.watch.ranks_told} of {hangs.watch.world_size} ranks of job {job} are told of so far"
        return f"{who}; `holdfast jobs {job}` shows how it stands, `holdfast nodes` its nodes"

    def _locate(self, request: LocateSlowness, now: datetime) -> Effect:
        slow = self._fail_slow.get(request.job)
        if slow is None or slow.heard_at is None or request.job in self._finished:
            message = f"no agent tells of a job {request.job} that trains; `holdfast jobs` lists the jobs"
            return Effect(answer=Answer(accepted=False, message=message))
        if slow.analysis is not None and slow.analysis.wanted.id != request.id:
            slow.break_off_rounds()
        if slow.analysis is not None and slow.analysis.wanted.id != request.id:
            message = f"job {request.job} is being looked at just now; ask again in a few seconds"
            if slow.analysis.ballot is not None:
                message = f"the stacks of job {request.job} are being taken in rounds just now; ask again in a minute"
            return Effect(answer=Answer(accepted=False, message=message))
        if slow.analysis is None:
            slow.by_hand(request.id, request.asked_by, now, tests=request.test, stacks=request.stacks)
        return _slow_effect(slow, now)

    def _told_of_slowness(self, job: str, event: CollectivesProfiled | SlownessTested, now: datetime) -> Effect:
        slow = self._slowness_of(job)
        if isinstance(event, CollectivesProfiled):
            slow.take_profile(event)
        else:
            slow.take_tests(event)
        return _slow_effect(slow, now)

    def _slowness_of(self, job: str) -> FailSlow:
        if job not in self._fail_slow:
            self._fail_slow[job] = FailSlow(job, self._slow)
        return self._fail_slow[job]

    def _measured(self, job: str, event: StepsMeasured, now: datetime) -> Effect:
        numbers = self._numbers_of(job)
        numbers.take(event)
        self._throughput_of(job).take(event)
        slow = self._slowness_of(job)
        slow.take(event, now)
        effect = self._found(job, event.id, now).together(_slow_effect(slow, now))
        times, measured = observe(self._step_times.get(job), event, now)
        if measured is None:
            self._step_times[job] = times
            return effect
        # Until the finding is committed the window stays as it was, or a second try would see nothing new.
        self._uncommitted[measured.id] = (job, times)
        return Effect(events=(measured,)).together(effect)

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
        rows = (RowWrite(table=KNOWN, key=job, row=numbers.known()),) if found or numbers.has_news else ()
        return Effect(rows=rows, events=(*found, *self._throughput_of(job).findings(cause, now)))


def _slow_effect(slow: FailSlow, now: datetime) -> Effect:
    said = slow.due(now)
    return Effect(
        events=tuple(what for what in said if isinstance(what, Event)),
        orders=tuple(what for what in said if isinstance(what, SlowWanted | TraceWanted)),
    )
