"""Distance of a rank's recent behaviour from all healthy behaviour of that length (TRANSOM §IV-B). Pure.

A matrix profile takes the single nearest subsequence of the past, which one odd moment of the past can spoil. The
neighbour profile (Y. He et al. 2020) averages the nearest in each of several small random bags of the past, so that
only common behaviour counts as known, at little cost.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from holdfast.engines.telemetry.lof import pairwise
from holdfast.engines.telemetry.windows import Floats


def subsequences(values: Floats, length: int) -> Floats:
    """Return all stretches of `length` times, flattened, of shape (ranks * stretches, metrics * length). `values` is of
    shape (ranks, metrics, times). Levels are kept: a flat line at zero differs from one at full load."""
    stretches = np.lib.stride_tricks.sliding_window_view(values, length, axis=2)
    ordered: Floats = np.ascontiguousarray(stretches.transpose(0, 2, 1, 3)).reshape(-1, values.shape[1] * length)
    return ordered


def bags_of(known: Floats, bags: int, size: int, seed: int) -> Floats:
    """Return random bags of known subsequences, of shape (bags, size, metrics * length)."""
    generator = np.random.default_rng(seed)
    size = min(size, len(known))
    chosen: NDArray[np.int64] = np.stack([generator.choice(len(known), size, replace=False) for _ in range(bags)])
    result: Floats = known[chosen]
    return result


def distances(bags: Floats, asked: Floats) -> Floats:
    """Return each subsequence's mean distance to the nearest one in each bag, per root of its length."""
    nearest = np.stack([pairwise(asked, bag).min(axis=1) for bag in bags])
    result: Floats = nearest.mean(axis=0) / np.sqrt(asked.shape[1])
    return result
