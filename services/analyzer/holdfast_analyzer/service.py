"""The analyzer as a decider: windows in memory, findings out. Samples never pass through Postgres on their way."""

from __future__ import annotations

from datetime import datetime

from holdfast.events import AnyEvent, JobFinished, StepsMeasured
from holdfast.finished_jobs import FinishedJobs
from holdfast.service import Decider, Effect
from holdfast_analyzer.step_time import StepTimes, observe


class Analyzer(Decider):
    """Holds the windows of all jobs; see `holdfast.service.Decider`. Not stored: they refill within seconds."""

    name = "analyzer"
    handles = (StepsMeasured, JobFinished)

    def __init__(self) -> None:
        self._step_times: dict[str, StepTimes] = {}
        self._finished = FinishedJobs()
        self._uncommitted: dict[str, tuple[str, StepTimes]] = {}

    def on_event(self, event: AnyEvent, now: datetime) -> Effect:
        if event.job is None:
            return Effect()
        if isinstance(event, JobFinished):
            self._step_times.pop(event.job, None)
            self._finished.add(event.job)
        elif isinstance(event, StepsMeasured) and event.job not in self._finished:
            times, finding = observe(self._step_times.get(event.job), event, now)
            if finding:
                # Until the finding is committed the window stays as it was, or a second try would see nothing new.
                self._uncommitted[finding.id] = (event.job, times)
                return Effect(events=(finding,))
            self._step_times[event.job] = times
        return Effect()

    def adopt(self, effect: Effect) -> None:
        for event in effect.events:
            job, times = self._uncommitted.pop(event.id)
            self._step_times[job] = times
