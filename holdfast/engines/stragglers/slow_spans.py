"""Spans of steps in which a worker is slow beside its peers. Pure."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from holdfast.engines.stragglers.traces.operations import Floats

SLOW = 1.08
"""A worker that takes so many times what its peers take is slow."""
_DEVIATIONS = 6.0
_STEPS_MIN = 3
_ALL = 0.9
"""A span of so much of the trace is all of it."""


class Span(NamedTuple):
    """Steps `first` to `last`, by number in the trace, in which a worker took `times` what its peers took."""

    stage: int
    dp_rank: int
    first: int
    last: int
    times: float
    is_throughout: bool


def slow_spans(beyond: Floats, noise: float) -> list[Span]:
    """Where workers are slow: stages x dp_ranks x steps, logarithms of a worker's time over its peers'.

    `noise`: one deviation of such a value, as far as it is known otherwise; its moves from step to step say more.
    """
    deviations = np.maximum(_of_moves(beyond), max(noise, 1e-4))
    return [
        span
        for stage, dp_rank in np.ndindex(beyond.shape[:2])
        for span in _of_worker(beyond[stage, dp_rank], stage, dp_rank, float(deviations[stage, dp_rank]))
    ]


def _of_moves(beyond: Floats) -> Floats:
    """One deviation of a value as its moves from step to step show it, stages x dp_ranks.

    Rare heavy steps hide from the usual move, so the mean square counts too, of all workers but the one judged.
    """
    moves = np.diff(beyond, axis=2)
    if not moves.size:
        return np.zeros(beyond.shape[:2])
    squares = (moves**2).sum(axis=2)
    others = max(squares.size - 1, 1) * moves.shape[2]
    mean_square = np.sqrt((squares.sum() - squares) / others)
    return np.asarray(np.maximum(1.4826 * np.median(np.abs(moves)), mean_square) / np.sqrt(2))


def _of_worker(beyond: Floats, stage: int, dp_rank: int, deviation: float) -> list[Span]:
    found: list[Span] = []
    left = beyond.copy()
    while True:
        first, last = _heaviest(left - np.log(SLOW) / 2)
        length = last - first + 1
        mean = float(left[first : last + 1].mean())
        enough = length >= min(_STEPS_MIN, len(left)) and mean * np.sqrt(length) > _DEVIATIONS * deviation
        if mean < np.log(SLOW) or not enough:
            return found
        found.append(Span(stage, dp_rank, first, last, float(np.exp(mean)), length >= _ALL * len(left)))
        left[first : last + 1] = -np.inf


def _heaviest(values: Floats) -> tuple[int, int]:
    """The first and last place of the run with the greatest sum."""
    best, best_sum = (0, 0), -np.inf
    first, total = 0, 0.0
    for place, value in enumerate(values.tolist()):
        if total <= 0:
            first, total = place, 0.0
        total += value
        if total > best_sum:
            best, best_sum = (first, place), total
    return best
