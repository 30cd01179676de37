"""Ranks that differ from the others: distance to the nearest ranks under time warping (TRANSOM §IV-B). Pure.

Ranks of a job do the same at about the same time; pipeline stages are slightly later, which warping permits. A rank is
compared with the k ranks most like it, so that stages of several kinds form several clusters without anomalies.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from holdfast.engines.telemetry.windows import Floats

PEERS_MAX = 24
"""Maximum number of ranks to compare with, spread evenly over the job."""


def distances_to_others(values: Floats, neighbours: int, band: int) -> Floats:
    """Return each rank's distance from the `neighbours` ranks nearest to it, of shape (ranks,), in octaves. `values` is
    of shape (ranks, metrics, times); `band`: maximum shift in times. All 0 for fewer than three ranks."""
    ranks = len(values)
    if ranks < 3:
        return np.zeros(ranks)
    places = np.arange(ranks)
    spread = places if ranks <= PEERS_MAX + 1 else np.unique(np.linspace(0, ranks - 1, PEERS_MAX + 1).astype(np.int64))
    left, right = (grid.ravel() for grid in np.meshgrid(places, spread, indexing="ij"))
    far = warped(values, left, right, band).reshape(ranks, len(spread))
    far[left.reshape(far.shape) == right.reshape(far.shape)] = np.inf
    count = min(neighbours, len(spread) - 1)
    result: Floats = np.partition(far, count - 1, axis=1)[:, :count].mean(axis=1)
    return result


def warped(values: Floats, left: NDArray[np.int64], right: NDArray[np.int64], band: int) -> Floats:
    """Return the distance of each pair of ranks under dynamic time warping within a band, per time and metric. All
    pairs are computed together: the table has few cells, and there are many pairs."""
    one, other = values[left], values[right]
    metrics, times = one.shape[1], one.shape[2]
    before = np.full((len(one), times + 1), np.inf)
    before[:, 0] = 0.0
    for row in range(times):
        present = np.full_like(before, np.inf)
        for column in range(max(0, row - band), min(times, row + band + 1)):
            cost = np.abs(one[:, :, row] - other[:, :, column]).sum(axis=1)
            least = np.minimum(np.minimum(before[:, column], before[:, column + 1]), present[:, column])
            present[:, column + 1] = cost + least
        before = present
    result: Floats = before[:, times] / (times * metrics)
    return result
