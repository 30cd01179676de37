"""Spans of steps in which a worker is slower than its peers. Pure."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from holdfast.engines.stragglers.traces.operations import Floats

SLOW = 1.08
"""Ratio to its peers from which a worker is slow."""
_DEVIATIONS = 6.0
_STEPS_MIN = 3
_ALL = 0.9
"""Share of the trace from which a span counts as all of it."""


class SlowSpan(NamedTuple):
    """Steps `first` to `last`, by number in the trace, in which a worker took `times` as long as its peers."""

    stage: int
    dp_rank: int
    first: int
    last: int
    times: float
    is_throughout: bool


def slow_spans(beyond: Floats, noise: float) -> list[SlowSpan]:
    """Find spans in `beyond`: stages x dp_ranks x steps, logarithms of a worker's time over its peers'. `noise`:
    standard deviation of such a value if known otherwise; its changes from step to step are better evidence."""
    deviations = np.maximum(_of_moves(beyond), max(noise, 1e-4))
    return [
        span
        for stage, dp_rank in np.ndindex(beyond.shape[:2])
        for span in _of_worker(beyond[stage, dp_rank], stage, dp_rank, float(deviations[stage, dp_rank]))
    ]


def _of_moves(beyond: Floats) -> Floats:
    """Estimate the standard deviation from changes between steps, stages x dp_ranks. Rare heavy steps do not affect the
    median change, so the mean square of all other workers counts too."""
    moves = np.diff(beyond, axis=2)
    if not moves.size:
        return np.zeros(beyond.shape[:2])
    squares = (moves**2).sum(axis=2)
    others = max(squares.size - 1, 1) * moves.shape[2]
    mean_square = np.sqrt((squares.sum() - squares) / others)
    return np.asarray(np.maximum(1.4826 * np.median(np.abs(moves)), mean_square) / np.sqrt(2))


def _of_worker(beyond: Floats, stage: int, dp_rank: int, deviation: float) -> list[SlowSpan]:
    found: list[SlowSpan] = []
    left = beyond.copy()
    while True:
        first, last = _heaviest(left - np.log(SLOW) / 2)
        length = last - first + 1
        mean = float(left[first : last + 1].mean())
        enough = length >= min(_STEPS_MIN, len(left)) and mean * np.sqrt(length) > _DEVIATIONS * deviation
        if mean < np.log(SLOW) or not enough:
            return found
        found.append(SlowSpan(stage, dp_rank, first, last, float(np.exp(mean)), length >= _ALL * len(left)))
        left[first : last + 1] = -np.inf


def _heaviest(values: Floats) -> tuple[int, int]:
    """Return the first and last position of the run with the greatest sum."""
    best, best_sum = (0, 0), -np.inf
    first, total = 0, 0.0
    for place, value in enumerate(values.tolist()):
        if total <= 0:
            first, total = place, 0.0
        total += value
        if total > best_sum:
            best, best_sum = (first, place), total
    return best
