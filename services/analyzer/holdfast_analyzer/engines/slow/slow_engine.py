"""Slow jobs, and the analyses that `holdfast slow` asks for."""

from __future__ import annotations

from datetime import datetime, timedelta

from holdfast.effects import Effect, RowWrite
from holdfast.events import (
    AnyEvent,
    CollectivesProfiled,
    CollectiveTrace,
    Event,
    HangSuspected,
    MfuDeclined,
    SlownessTested,
    StackDump,
    StepsMeasured,
)
from holdfast.orders.slow import SlowOrder
from holdfast.orders.trace import TraceOrder
from holdfast.requests import Answer, AnyRequest, LocateSlowness
from holdfast.settings.findings.slow import SlowPolicy
from holdfast_analyzer.engines.engine import Engine
from holdfast_analyzer.engines.slow.fail_slow import SlowJob

OLD = timedelta(seconds=30)
"""Older stacks show nothing of the present."""


class SlowEngine(Engine):
    events = (StepsMeasured, CollectivesProfiled, SlownessTested, StackDump, CollectiveTrace)
    requests = (LocateSlowness,)

    def __init__(self, policy: SlowPolicy) -> None:
        self._policy = policy
        self._jobs: dict[str, SlowJob] = {}

    def take(self, job: str, event: AnyEvent, now: datetime) -> Effect:
        if isinstance(event, StackDump | CollectiveTrace):
            slow = self._jobs.get(job)
            if slow is None or now - event.at > OLD or not slow.take_stacks(event):
                return Effect()
            return _effect(slow, now)
        slow = self._job(job)
        if isinstance(event, StepsMeasured):
            slow.take(event, now)
        elif isinstance(event, CollectivesProfiled):
            slow.take_profile(event)
        elif isinstance(event, SlownessTested):
            slow.take_tests(event)
        return _effect(slow, now)

    def due(self, now: datetime, hearing_since: datetime | None) -> Effect:
        whole = Effect()
        for slow in self._jobs.values():
            whole = whole.together(_effect(slow, now))
        return whole

    def answer(self, request: AnyRequest, now: datetime) -> Effect:
        assert isinstance(request, LocateSlowness)
        slow = self._jobs.get(request.job)
        if slow is None or slow.received_at is None:
            message = f"no agent reports a job {request.job} that trains; `holdfast jobs` lists the jobs"
            return Effect(answer=Answer(accepted=False, message=message))
        if slow.analysis is not None and slow.analysis.asked != request.id:
            slow.break_off_rounds()
        if slow.analysis is not None and slow.analysis.asked != request.id:
            message = f"job {request.job} is being analyzed now; ask again in a few seconds"
            if slow.analysis.ballot is not None:
                message = f"the stacks of job {request.job} are being taken in rounds now; ask again in a minute"
            return Effect(answer=Answer(accepted=False, message=message))
        if slow.analysis is None:
            slow.requested(request.id, request.asked_by, now, tests=request.test, stacks=request.stacks)
        return _effect(slow, now)

    def committed(self, effect: Effect) -> None:
        for emitted in (*effect.events, *effect.orders):
            if isinstance(emitted, Event | SlowOrder | TraceOrder) and emitted.job in self._jobs:
                self._jobs[emitted.job].committed(emitted)
        for event in effect.events:
            if isinstance(event, MfuDeclined) and event.job is not None:
                self._job(event.job).declined(event)
            elif isinstance(event, HangSuspected) and event.job in self._jobs:
                self._jobs[event.job].break_off_rounds()

    def forget(self, job: str) -> tuple[RowWrite, ...]:
        self._jobs.pop(job, None)
        return ()

    def _job(self, job: str) -> SlowJob:
        if job not in self._jobs:
            self._jobs[job] = SlowJob(job, self._policy)
        return self._jobs[job]


def _effect(slow: SlowJob, now: datetime) -> Effect:
    pending = slow.due(now)
    return Effect(
        events=tuple(each for each in pending if isinstance(each, Event)),
        orders=tuple(each for each in pending if not isinstance(each, Event)),
    )
