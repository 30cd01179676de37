"""The present step time of a job, so that limits adapt to it. Pure; the windows live in memory only.

A finding is emitted after the first few steps, and again when the median has moved by a fifth: findings stay rare while
samples are many.
"""

from __future__ import annotations

import statistics
from datetime import datetime

import msgspec

from holdfast.effects import Effect, RowWrite
from holdfast.events import AnyEvent, StepsMeasured, StepTimeMeasured
from holdfast.ids import derived_id
from holdfast_analyzer.engines.engine import Engine

WINDOW = 64
"""Steps that the median is taken over."""

FIRST_AFTER = 5
"""Steps needed before the first finding."""

MOVED_BY = 0.2
"""Share by which the median must move before it is reported again."""

SOURCE = "analyzer"


class StepWindow(msgspec.Struct, frozen=True, kw_only=True):
    """The newest step durations of one generation (without its first step: warm-up), and the median reported last."""

    generation: int
    durations_s: tuple[float, ...] = ()
    newest_step: int | None = None
    reported_s: float | None = None

    @property
    def p99_s(self) -> float:
        """A long step of the window; needs at least one."""
        return sorted(self.durations_s)[min(len(self.durations_s) - 1, int(0.99 * len(self.durations_s)))]


class StepTimeEngine(Engine):
    events = (StepsMeasured,)

    def __init__(self) -> None:
        self._windows: dict[str, StepWindow] = {}
        self._uncommitted: dict[str, StepWindow] = {}

    def long_step_s(self, job: str) -> float | None:
        """Return the P99 of a job's newest steps; None: too few are known."""
        window = self._windows.get(job)
        return window.p99_s if window and len(window.durations_s) >= FIRST_AFTER else None

    def take(self, job: str, event: AnyEvent, now: datetime) -> Effect:
        assert isinstance(event, StepsMeasured)
        window, finding = observe(self._windows.get(job), event, now)
        if finding is None:
            self._windows[job] = window
            return Effect()
        # Until the finding is committed the window stays as it was, or a second try would see nothing new.
        self._uncommitted[job] = window
        return Effect(events=(finding,))

    def committed(self, effect: Effect) -> None:
        for event in effect.events:
            if isinstance(event, StepTimeMeasured) and event.job in self._uncommitted:
                self._windows[event.job] = self._uncommitted.pop(event.job)

    def forget(self, job: str) -> tuple[RowWrite, ...]:
        self._windows.pop(job, None)
        self._uncommitted.pop(job, None)
        return ()


def observe(
    window: StepWindow | None, event: StepsMeasured, now: datetime
) -> tuple[StepWindow, StepTimeMeasured | None]:
    """Add the samples of one node, and return the finding if there is one. A step counts once, from any rank."""
    generation = event.generation or 0
    if window is None or generation > window.generation:
        window = StepWindow(generation=generation, reported_s=window.reported_s if window else None)
    if generation < window.generation:
        return window, None
    durations = list(window.durations_s)
    newest = window.newest_step
    for sample in sorted(event.samples, key=lambda sample: sample.step):
        if newest is not None and sample.step > newest and sample.duration_s > 0:
            durations.append(sample.duration_s)
        newest = sample.step if newest is None else max(newest, sample.step)
    window = msgspec.structs.replace(window, durations_s=tuple(durations[-WINDOW:]), newest_step=newest)
    if len(window.durations_s) < FIRST_AFTER:
        return window, None
    median_s = statistics.median(window.durations_s)
    if window.reported_s is not None and abs(median_s - window.reported_s) <= MOVED_BY * window.reported_s:
        return window, None
    finding = StepTimeMeasured(
        id=derived_id(event.id, "step time"),
        at=now,
        source=SOURCE,
        job=event.job,
        generation=generation,
        cause=event.id,
        median_s=median_s,
        p99_s=window.p99_s,
        samples=len(window.durations_s),
    )
    return msgspec.structs.replace(window, reported_s=median_s), finding
