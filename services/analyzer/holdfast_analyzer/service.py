"""The analyzer as a decider: windows in memory, findings out. Samples never pass through Postgres on their way."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from holdfast.events import AnyEvent, Event, JobFinished, StepsMeasured
from holdfast.requests import Answer, AnyRequest
from holdfast.service import Effect
from holdfast.store import Table
from holdfast_analyzer.step_time import StepTimes, observe


class Analyzer:
    """Holds the windows of all jobs; see `holdfast.service.Decider`. Not stored: they refill within seconds."""

    name = "analyzer"
    tables: tuple[Table[Any], ...] = ()
    handles: tuple[type[Event], ...] = (StepsMeasured, JobFinished)
    requests_subject: str | None = None

    def __init__(self) -> None:
        self._step_times: dict[str, StepTimes] = {}

    def load(self, rows: Mapping[str, Mapping[str, Any]]) -> None:
        pass

    def on_event(self, event: AnyEvent, now: datetime) -> Effect:
        if event.job is None:
            return Effect()
        if isinstance(event, JobFinished):
            self._step_times.pop(event.job, None)
        elif isinstance(event, StepsMeasured):
            self._step_times[event.job], finding = observe(self._step_times.get(event.job), event, now)
            if finding:
                return Effect(events=(finding,))
        return Effect()

    def on_request(self, request: AnyRequest, now: datetime) -> Effect:
        return Effect(answer=Answer(accepted=False, message="the analyzer serves no requests"))

    def on_time(self, now: datetime) -> Effect:
        return Effect()

    def next_time(self) -> datetime | None:
        return None

    def adopt(self, effect: Effect) -> None:
        pass
