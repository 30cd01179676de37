"""How far what a rank did lately is from all that healthy ranks ever did for as long (TRANSOM §IV-B). Pure.

A matrix profile takes the one nearest subsequence of the past, which a single odd moment of the past spoils. The
neighbour profile (He et al. 2020) takes the nearest in each of several small random bags of the past and averages, so
that only what was common counts as known, and costs little.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from holdfast.engines.telemetry.lof import pairwise
from holdfast.engines.telemetry.windows import Floats


def subsequences(values: Floats, length: int) -> Floats:
    """All stretches of `length` times, flattened, of shape (ranks * stretches, metrics * length).

    `values` is of shape (ranks, metrics, times). Levels are kept: a flat line at zero is not a flat line at full load.
    """
    stretches = np.lib.stride_tricks.sliding_window_view(values, length, axis=2)
    ordered: Floats = np.ascontiguousarray(stretches.transpose(0, 2, 1, 3)).reshape(-1, values.shape[1] * length)
    return ordered


def bags_of(known: Floats, bags: int, size: int, seed: int) -> Floats:
    """Random bags of known subsequences, of shape (bags, size, metrics * length)."""
    generator = np.random.default_rng(seed)
    size = min(size, len(known))
    chosen: NDArray[np.int64] = np.stack([generator.choice(len(known), size, replace=False) for _ in range(bags)])
    result: Floats = known[chosen]
    return result


def distances(bags: Floats, asked: Floats) -> Floats:
    """The mean distance of each asked subsequence to the nearest one in each bag, per root of its length."""
    nearest = np.stack([pairwise(asked, bag).min(axis=1) for bag in bags])
    result: Floats = nearest.mean(axis=0) / np.sqrt(asked.shape[1])
    return result
