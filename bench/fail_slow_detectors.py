"""The detectors compared: Holdfast's change points, and those of GREYHOUND §7.2: a sliding window, BOCD alone, and
BOCD with the verification as the paper has it."""

from __future__ import annotations

import bisect
import math
import statistics
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from holdfast.engines.slow.change_points import CHANGED_BY, SURE, WARM_UP, ChangePoints
from holdfast.engines.slow.run_lengths import RunLengths


class Said(NamedTuple):
    """A change of pace: found with the sample of number `at`; `index`: where it began."""

    at: int
    index: int
    is_slower: bool


class Detector(Protocol):
    """One series. A sample goes in; what is said with it comes out."""

    def observe(self, duration_s: float) -> Said | None: ...


class Holdfast:
    def __init__(self) -> None:
        self._points = ChangePoints()
        self._at = -1

    def observe(self, duration_s: float) -> Said | None:
        self._at += 1
        change = self._points.observe(duration_s)
        return Said(self._at, change.index, change.is_slower) if change else None


class Median:
    """The median of the last samples."""

    def __init__(self, samples: int) -> None:
        self._samples: deque[float] = deque(maxlen=samples)
        self._sorted: list[float] = []

    def push(self, value: float) -> float | None:
        """Take in a sample. The one that it drives out."""
        left = None
        if len(self._samples) == self._samples.maxlen:
            left = self._samples[0]
            del self._sorted[bisect.bisect_left(self._sorted, left)]
        self._samples.append(value)
        bisect.insort(self._sorted, value)
        return left

    def __len__(self) -> int:
        return len(self._samples)

    @property
    def value(self) -> float:
        return self._sorted[len(self._sorted) // 2]

    @property
    def mean(self) -> float:
        return sum(self._sorted) / len(self._sorted)


class SlidingWindow:
    """A change where the last samples, by their mean or their median, are 10 % off the median of those before them."""

    def __init__(self, is_median: bool, window: int = 16, history: int = 128) -> None:
        self._is_median = is_median
        self._window = Median(window)
        self._history = Median(history)
        self._enough = window
        self._at = -1
        self._side = 0

    def observe(self, duration_s: float) -> Said | None:
        self._at += 1
        if self._at < WARM_UP:
            return None
        left = self._window.push(duration_s)
        if left is not None:
            self._history.push(left)
        if len(self._history) < self._enough:
            return None
        ratio = (self._window.value if self._is_median else self._window.mean) / self._history.value
        side = 1 if ratio > 1.0 + CHANGED_BY else -1 if ratio < 1.0 - CHANGED_BY else 0
        was, self._side = self._side, side
        if side in (0, was):
            return None
        return Said(self._at, self._at - self._enough + 1, side > 0)


class Bocd:
    """Adams & MacKay without more: every change point that is sure enough. The prior of the noise is fixed."""

    NOISE = 0.02

    def __init__(self) -> None:
        self._runs = RunLengths(outlier=0.0)
        self._at = -1
        self._first = 0.0
        self._start = 0
        self._level = 0.0

    def observe(self, duration_s: float) -> Said | None:
        self._at += 1
        if self._at < WARM_UP:
            return None
        value = math.log(duration_s)
        if self._at == WARM_UP:
            self._first = self._level = value
            self._start = WARM_UP
        self._runs.observe(self._at, value, self._first, self.NOISE)
        likeliest = self._runs.likeliest()
        if self._runs.changed_since(self._start) < SURE:
            if likeliest.start == self._start:
                self._level = likeliest.mean
            return None
        self._start = likeliest.start
        return Said(self._at, likeliest.start, likeliest.mean > self._level)


def verified(said: Sequence[Said], durations_s: Sequence[float], samples: int = 16) -> list[Said]:
    """Return the reports of BOCD where the means of the samples before and after differ by 10 % (GREYHOUND §4.2)."""
    found: list[Said] = []
    for one in said:
        before = durations_s[max(WARM_UP, one.index - samples) : one.index]
        after = durations_s[one.index : one.index + samples]
        if before and len(after) == samples:
            ratio = statistics.fmean(after) / statistics.fmean(before)
            if abs(ratio - 1.0) >= CHANGED_BY:
                found.append(Said(max(one.at, one.index + samples - 1), one.index, ratio > 1.0))
    return sorted(found)
