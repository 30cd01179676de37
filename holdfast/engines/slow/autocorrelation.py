"""Period of a sequence of calls, by autocorrelation (GREYHOUND §4.2). Pure.

Calls have no values, so each kind of call is its own series: 1 where it is called, else 0. A repeating sequence has an
autocorrelation near 1 at its period in every series. Requiring it of each series, rather than of all calls together,
separates an iteration from its many micro-batches: a call once per iteration does not have their period.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

THRESHOLD = 0.95  # GREYHOUND §4.2
PERIODS_MIN = 3
"""Periods that a window must contain: two may be chance, and a third costs one iteration."""
OCCURRENCES_MIN = 3
PER_PERIOD_MAX = 64
"""Maximum calls per period of the rarest kind of call."""
LOST = -1


def find_period(calls: Sequence[int], required: frozenset[int] = frozenset()) -> int | None:
    """Return the shortest lag at which every kind of call repeats; None if there is none yet. Linear in `calls`.
    `calls`: small numbers, one per kind; `LOST`: a missing record. `required`: kinds that the period must contain."""
    window = np.asarray(calls, dtype=np.int32)
    total = len(window)
    known = window[window != LOST]
    if total < PERIODS_MIN or not len(known):
        return None
    counts = np.bincount(known)
    regular = np.flatnonzero(counts >= OCCURRENCES_MIN)
    if not len(regular) or not required <= set(regular.tolist()):
        return None
    rarest = regular[np.argmin(counts[regular])]
    at = np.flatnonzero(window == rarest)
    # A period also repeats its rarest call, so only distances between two of these can be a period.
    lags = set((at[-1] - at[-1 - PER_PERIOD_MAX : -1]).tolist()) | set((at[-2] - at[-2 - PER_PERIOD_MAX : -2]).tolist())
    for lag in sorted(lags):
        if lag * PERIODS_MIN > total:
            return None
        if least_autocorrelation(window, lag, regular) >= THRESHOLD:
            return int(lag)
    return None


def least_autocorrelation(window: NDArray[np.int32], lag: int, kinds: NDArray[np.intp]) -> float:
    """Return the lowest autocorrelation at `lag`: of each of `kinds`, and of all calls together. For a kind with share
    p that follows itself after `lag` calls with frequency f: (f - p) / (1 - p), 1 if always, 0 if only by chance."""
    before, after = window[:-lag], window[lag:]
    comparable = (before != LOST) & (after != LOST)
    before, after = before[comparable], after[comparable]
    if not len(before):
        return 0.0
    size = int(max(before.max(), after.max(), kinds.max())) + 1
    called = np.bincount(before, minlength=size)
    again = np.bincount(before[before == after], minlength=size)
    if (called[kinds] == 0).any():
        return 0.0
    share = called / len(before)
    # A kind that makes up nearly all calls has almost no variance, so only its frequency counts.
    chance = np.where(share < THRESHOLD, share, 0.0)
    of_kinds = (again[kinds] / called[kinds] - chance[kinds]) / (1.0 - chance[kinds])
    by_chance = float((chance**2).sum())
    of_all = (float(again.sum()) / len(before) - by_chance) / (1.0 - by_chance)
    return min(float(of_kinds.min()), of_all)


def pattern_of(calls: Sequence[int], period: int) -> list[int]:
    """Return the last period of `calls`; missing records are filled from earlier periods."""
    pattern = list(calls[-period:])
    for place in range(period):
        back = len(calls) - period + place
        while pattern[place] == LOST and back >= period:
            back -= period
            pattern[place] = calls[back]
    return pattern
