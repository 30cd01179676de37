"""Points at which iterations became slower or faster for good (GREYHOUND §4.2). Pure.

A change point that `run_lengths` is certain of is verified: the times since then are compared with the level before. A
difference below 10 % is jitter. So is one that is over within three iterations, or is within the series' noise.

The level is that of the first iterations of a pace and then stays fixed: a job that slows down in steps of less than
10 %, or gradually, counts as slow once it is 10 % slower than at the start.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from typing import NamedTuple

import msgspec

from holdfast.engines.slow.run_lengths import RunLengths

SURE = 0.9  # GREYHOUND §4.2
CHANGED_BY = 0.10  # GREYHOUND §4.2
WARM_UP = 10
"""Iterations that are ignored: connections, caches, compilation."""
FIRST_SAMPLES = 12
"""Iterations after the warm-up that set the first level and the noise."""
LEVEL_SAMPLES = 32
"""Iterations that a level is the mean of."""
AFTER_MIN = 3
"""Minimum iterations at a new pace."""
STANDS_OUT = 6.0
"""Standard errors that a change must exceed: thousands of iterations of thousands of jobs are tested."""
UNLIKE_MIN = 8
"""Minimum iterations at a new pace if they differ from each other."""
ALIKE = 0.5
NOISE_APART = 6.0
"""Iterations are alike if they differ by less than this share of the change, or by `NOISE_APART` deviations."""
MARGIN = 3.0
"""Standard errors above 10 % from which a change is accepted at once."""
WINDOW = 64
CREEP_EVERY = 8
"""Iterations between comparisons with the level, to find gradual changes, which have no change point."""
CREEP_SAMPLES = 24
JITTERS_MAX = 32
JITTERS_OFTEN = 3
OFTEN_MIN = 5
JITTER_LASTS = 1_000
"""Iterations after which a jitter is forgotten."""
JITTER_SIZE = 0.5
"""A jitter below this share of a change is no evidence about it."""
NOISE_FLOOR = 0.003
NOISE_SAMPLES = 200.0
CLIP = 3.0
"""Standard deviations to which a sample is clipped."""
JITTER_SURE = 2.0
"""Standard errors below 10 % at which a difference is certainly jitter."""


class ChangePoint(msgspec.Struct, frozen=True, kw_only=True):
    """`index` of the first sample at the new pace, counted from 0, and the samples needed to be certain."""

    index: int
    before_s: float
    after_s: float
    detected_after: int

    @property
    def is_slower(self) -> bool:
        return self.after_s > self.before_s


class _Jitter(NamedTuple):
    lasted: int
    size: float
    at: int


class _Jitters:
    """Past deviations of one or several iterations that ended by themselves; they may recur, even twice in a row."""

    def __init__(self, least: float) -> None:
        self._least = least
        self._off: list[float] = []
        self._known: deque[_Jitter] = deque(maxlen=JITTERS_MAX)

    def observe(self, index: int, off: float) -> None:
        if abs(off) >= self._least and (not self._off or off * self._off[0] > 0.0):
            if len(self._off) < CREEP_SAMPLES:
                self._off.append(off)
            return
        if self._off:
            self._known.append(_Jitter(len(self._off), max(self._off, key=abs), index))
        self._off.clear()

    def forget_present(self) -> None:
        """Forget the present deviation: it is a change of pace."""
        self._off.clear()

    def outlasted_by(self, index: int, difference: float) -> int:
        """Return the iterations that a change of this size must last. Two more than any jitter of about that size;
        longer than two of them in a row, where they are frequent."""
        while self._known and index - self._known[0].at > JITTER_LASTS:
            self._known.popleft()
        lasted = [jitter.lasted for jitter in self._known if jitter.size / difference > JITTER_SIZE]
        longest = max(lasted, default=1)
        if len(lasted) < JITTERS_OFTEN:
            return longest + 2
        return max(longest + 2, min(UNLIKE_MIN, OFTEN_MIN + 2 * (longest - 1)))


class ChangePoints:
    """Changes of pace of one series. O(1) per sample, bounded memory."""

    def __init__(self, changed_by: float = CHANGED_BY) -> None:
        self._least = math.log1p(changed_by)
        self._runs = RunLengths()
        self._index = -1
        self._window: deque[float] = deque(maxlen=WINDOW)
        self._run_start = 0
        self._level = self._anchor = 0.0
        self._level_count = 0
        self._before: float | None = None
        self._variance = NOISE_FLOOR**2
        self._variance_count = float(FIRST_SAMPLES)
        self._jitters = _Jitters(self._least)

    def observe(self, duration_s: float) -> ChangePoint | None:
        """Add a time in seconds; return the change of pace that it makes certain. Raises ValueError if not positive."""
        if not 0.0 < duration_s < math.inf:
            raise ValueError(f"an iteration took {duration_s} s: it must be a positive number of seconds")
        self._index += 1
        if self._index < WARM_UP:
            return None
        value = math.log(duration_s)
        self._window.append(value)
        if self._before is None and self._level_count < FIRST_SAMPLES:
            self._level_count += 1
            if self._level_count == FIRST_SAMPLES:
                self._begin()
            return None
        noise = math.sqrt(self._variance)
        self._runs.observe(self._index, value, self._level, noise)
        is_changed = self._runs.changed_since(self._run_start) >= SURE
        change = self._candidate(noise) if is_changed else self._creeping(noise)
        if change is None:
            self._jitters.observe(self._index, value - self._level)
            if not is_changed:
                self._settle(value, noise)
        return change

    def _begin(self) -> None:
        self._level = self._anchor = statistics.median(self._window)
        # Half of normal samples are within 0.6745 standard deviations.
        deviation = statistics.median(abs(value - self._level) for value in self._window) / 0.6745
        self._variance = max(NOISE_FLOOR, deviation) ** 2

    def _candidate(self, noise: float) -> ChangePoint | None:
        """Return the probable change point if verification confirms it."""
        run = self._runs.likeliest()
        count = self._index - run.start + 1
        if run.start <= self._run_start or count < AFTER_MIN:
            return None
        after = self._last(count)
        if change := self._compared(after, noise):
            return change
        off = abs(statistics.median(after) - self._level)
        if count >= CREEP_SAMPLES or off + JITTER_SURE * noise / math.sqrt(count) < self._least:
            # Jitter, or no change at all: the next change ends this run.
            self._run_start = run.start
        return None

    def _creeping(self, noise: float) -> ChangePoint | None:
        if self._index % CREEP_EVERY or len(self._window) < CREEP_SAMPLES:
            return None
        after = self._last(CREEP_SAMPLES)
        return self._compared(after, noise) or self._returned(after)

    def _returned(self, after: list[float]) -> ChangePoint | None:
        """Return a change back: a slowdown of hardly 10 % can end by less than 10 %."""
        if self._before is None:
            return None
        centre = statistics.median(after)
        if abs(centre - self._before) > self._least / 2 or abs(centre - self._anchor) < self._least / 2:
            return None
        return self._changed(after, centre)

    def _compared(self, after: list[float], noise: float) -> ChangePoint | None:
        centre = statistics.median(after)
        difference = centre - self._level
        error = noise / math.sqrt(len(after))
        # A change of hardly 10 % must last: three iterations do not measure it.
        margin = 0.0 if len(after) >= CREEP_SAMPLES else MARGIN * error
        if abs(difference) < max(self._least + margin, STANDS_OUT * error):
            return None
        if len(after) < self._jitters.outlasted_by(self._index, difference):
            return None
        # Iterations at one pace are alike, jitters in a row are not. The first may have begun at the old pace.
        apart = max(after[1:]) - min(after[1:])
        if len(after) < UNLIKE_MIN and apart > max(NOISE_APART * noise, ALIKE * abs(difference)):
            return None
        # Each of the last iterations is nearer to the new pace: a spike of two iterations would be over.
        if any((value - self._level) / difference < 0.5 for value in after[-AFTER_MIN:]):
            return None
        return self._changed(after, centre)

    def _changed(self, after: list[float], centre: float) -> ChangePoint:
        start = self._index - len(after) + 1
        change = ChangePoint(
            index=start,
            before_s=math.exp(self._level),
            after_s=math.exp(centre),
            detected_after=len(after),
        )
        self._run_start = start
        self._runs.began(start)
        self._before = self._level
        self._level, self._level_count = centre, len(after)
        self._anchor = centre
        self._jitters.forget_present()
        self._window = deque(after, maxlen=WINDOW)
        return change

    def _settle(self, value: float, noise: float) -> None:
        """Add a sample of the present pace; outliers are clipped."""
        off = max(-CLIP * noise, min(CLIP * noise, value - self._level))
        if self._level_count < LEVEL_SAMPLES:
            self._level_count += 1
            self._level += off / self._level_count
        run = self._runs.likeliest()
        centre = run.mean if run.count >= CREEP_EVERY else self._level
        off = min(CLIP * noise, abs(value - centre))
        self._variance_count = min(NOISE_SAMPLES, self._variance_count + 1.0)
        self._variance += (off * off - self._variance) / self._variance_count
        self._variance = max(NOISE_FLOOR**2, self._variance)

    def _last(self, count: int) -> list[float]:
        count = min(count, len(self._window))
        return [self._window[place] for place in range(len(self._window) - count, len(self._window))]
