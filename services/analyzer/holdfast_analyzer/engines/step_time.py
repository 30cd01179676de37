"""What a step of a job takes now, so that limits adapt to it. Pure; the windows live in memory only.

A finding is said when the first window is full, and again when the median has moved by a fifth: so the finding
is rare while samples are many.
"""

from __future__ import annotations

import statistics
from datetime import datetime

import msgspec

from holdfast.events import StepsMeasured, StepTimeMeasured
from holdfast.ids import derived_id

WINDOW = 64
"""Steps that the median is taken over."""

FIRST_AFTER = 5
"""Steps needed before anything is said."""

MOVED_BY = 0.2
"""Share by which the median must move to be said again."""

SOURCE = "analyzer"


class StepTimes(msgspec.Struct, frozen=True, kw_only=True):
    """The newest step durations of one generation of a job in seconds, and the median that was said last.

    A generation's first step is left out: it pays for connections and warm-up.
    """

    generation: int
    durations_s: tuple[float, ...] = ()
    newest_step: int | None = None
    said_s: float | None = None


def p99_s(times: StepTimes) -> float | None:
    """A long step of the newest; None: too few are known."""
    window = times.durations_s
    return sorted(window)[min(len(window) - 1, int(0.99 * len(window)))] if len(window) >= FIRST_AFTER else None


def observe(times: StepTimes | None, event: StepsMeasured, now: datetime) -> tuple[StepTimes, StepTimeMeasured | None]:
    """Take in the samples of one node; what is to be said, if anything. A step counts once, whichever rank tells it."""
    generation = event.generation or 0
    if times is None or generation > times.generation:
        times = StepTimes(generation=generation, said_s=times.said_s if times else None)
    if generation < times.generation:
        return times, None
    durations = list(times.durations_s)
    newest = times.newest_step
    for sample in sorted(event.samples, key=lambda sample: sample.step):
        if newest is not None and sample.step > newest and sample.duration_s > 0:
            durations.append(sample.duration_s)
        newest = sample.step if newest is None else max(newest, sample.step)
    window = tuple(durations[-WINDOW:])
    times = msgspec.structs.replace(times, durations_s=window, newest_step=newest)
    if len(window) < FIRST_AFTER:
        return times, None
    median_s = statistics.median(window)
    if times.said_s is not None and abs(median_s - times.said_s) <= MOVED_BY * times.said_s:
        return times, None
    finding = StepTimeMeasured(
        id=derived_id(event.id, "step time"),
        at=now,
        source=SOURCE,
        job=event.job,
        generation=generation,
        cause=event.id,
        median_s=median_s,
        p99_s=sorted(window)[min(len(window) - 1, int(0.99 * len(window)))],
        samples=len(window),
    )
    return msgspec.structs.replace(times, said_s=median_s), finding
