"""The period of a sequence of calls, by its autocorrelation (GREYHOUND §4.2). Pure.

Calls have no numbers of their own, so each kind of call is a series of its own: 1 where it is called, else 0. What
repeats has an autocorrelation near 1 at its period in every one of them. Asking for each, rather than for all together,
tells an iteration of many micro-batches from its micro-batches: what comes once an iteration has none at their period.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

THRESHOLD = 0.95  # GREYHOUND §4.2
PERIODS_MIN = 3
"""Periods that a window must hold: two may be chance, and a third costs one iteration."""
OCCURRENCES_MIN = 3
PER_PERIOD_MAX = 64
"""Of the rarest kind of call, in one period."""
LOST = -1


def find_period(calls: Sequence[int], required: frozenset[int] = frozenset()) -> int | None:
    """The shortest lag at which every kind of call repeats; None: there is none yet. Linear in `calls`.

    `calls` are small numbers, one for each kind; `LOST`: a record is missing there. `required` kinds must be in it.
    """
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
    # What repeats also repeats its rarest call: only distances between two of these can be a period.
    lags = set((at[-1] - at[-1 - PER_PERIOD_MAX : -1]).tolist()) | set((at[-2] - at[-2 - PER_PERIOD_MAX : -2]).tolist())
    for lag in sorted(lags):
        if lag * PERIODS_MIN > total:
            return None
        if least_autocorrelation(window, lag, regular) >= THRESHOLD:
            return int(lag)
    return None


def least_autocorrelation(window: NDArray[np.int32], lag: int, kinds: NDArray[np.intp]) -> float:
    """The least of the autocorrelations at `lag`: of each of `kinds`, and of all calls together.

    Of a kind that makes up the share p of the calls and follows itself after `lag` calls with frequency f it is
    (f - p) / (1 - p): 1 where it always does, 0 where it does so by chance.
    """
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
    # What is nearly all that is called has no variance to speak of: that it follows itself is all there is to ask.
    chance = np.where(share < THRESHOLD, share, 0.0)
    of_kinds = (again[kinds] / called[kinds] - chance[kinds]) / (1.0 - chance[kinds])
    by_chance = float((chance**2).sum())
    of_all = (float(again.sum()) / len(before) - by_chance) / (1.0 - by_chance)
    return min(float(of_kinds.min()), of_all)


def pattern_of(calls: Sequence[int], period: int) -> list[int]:
    """One period of `calls`, as its end has it; where a record is missing there, as an earlier one has it."""
    pattern = list(calls[-period:])
    for place in range(period):
        back = len(calls) - period + place
        while pattern[place] == LOST and back >= period:
            back -= period
            pattern[place] = calls[back]
    return pattern
