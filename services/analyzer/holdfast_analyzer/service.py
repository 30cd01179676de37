"""The analyzer as a decider: it dispatches events to engines and knows none of them by name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from holdfast.daemon.jobs.finished_jobs import FinishedJobs
from holdfast.daemon.service_shell import Decider
from holdfast.effects import Effect
from holdfast.events import AnyEvent, Event, JobFinished
from holdfast.requests import ANALYZER_REQUESTS, Answer, AnyRequest, Request
from holdfast_analyzer.engines.engine import Engine


class Analyzer(Decider):
    """All engines behind one queue; see `holdfast.daemon.service_shell.Decider`."""

    name = "analyzer"
    requests_subject = ANALYZER_REQUESTS
    knows_nodes = True

    def __init__(self, engines: Iterable[Engine]) -> None:
        self._engines = tuple(engines)
        self._by_event: dict[type[Event], list[Engine]] = defaultdict(list)
        self._by_request: dict[type[Request], Engine] = {}
        for engine in self._engines:
            for event_type in engine.events:
                self._by_event[event_type].append(engine)
            self._by_request |= dict.fromkeys(engine.requests, engine)
        self.handles = (*self._by_event, JobFinished)
        self.tables = tuple(table for engine in self._engines for table in engine.tables)
        self._finished = FinishedJobs()

    def load(self, rows: Mapping[str, Mapping[str, Any]]) -> None:
        for engine in self._engines:
            engine.load(rows)

    def on_event(self, event: AnyEvent, now: datetime) -> Effect:
        job = event.job
        if job is None:
            return Effect()
        if isinstance(event, JobFinished):
            self._finished.add(job)
            return Effect(rows=tuple(row for engine in self._engines for row in engine.forget(job)))
        if job in self._finished:
            return Effect()
        return _together(engine.take(job, event, now) for engine in self._by_event[type(event)])

    def on_request(self, request: AnyRequest, now: datetime) -> Effect:
        engine = self._by_request.get(type(request))
        if engine is None:
            return super().on_request(request, now)
        job = getattr(request, "job", None)
        if job is not None and job in self._finished:
            return Effect(answer=Answer(accepted=False, message=f"job {job} is over: nothing of it runs any more"))
        return engine.answer(request, now)

    def on_time(self, now: datetime, hearing_since: datetime | None) -> Effect:
        return _together(engine.due(now, hearing_since) for engine in self._engines)

    def adopt(self, effect: Effect) -> None:
        for engine in self._engines:
            engine.committed(effect)


def _together(effects: Iterable[Effect]) -> Effect:
    whole = Effect()
    for effect in effects:
        if not effect.is_nothing:
            whole = whole.together(effect)
    return whole
