"""The analyzer as a decider: windows in memory, findings out. Samples never pass through Postgres on their way."""

from __future__ import annotations

from datetime import datetime

from holdfast.events import AnyEvent, JobFinished, StepsMeasured
from holdfast.service import Decider, Effect
from holdfast_analyzer.step_time import StepTimes, observe


class Analyzer(Decider):
    """Holds the windows of all jobs; see `holdfast.service.Decider`. Not stored: they refill within seconds."""

    name = "analyzer"
    handles = (StepsMeasured, JobFinished)

    def __init__(self) -> None:
        self._step_times: dict[str, StepTimes] = {}

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
