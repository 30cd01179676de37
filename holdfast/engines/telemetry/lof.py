"""Local outlier factor of new points against healthy ones (Breunig et al. 2000, as in TRANSOM §IV-B). Pure.

The factor compares the density around a point with that around its nearest healthy points. It is local: the few points
of a checkpoint phase are as healthy as the many of training, each in its own crowd.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from holdfast.engines.telemetry.windows import Floats

_TINY = 1e-9


class Crowd(NamedTuple):
    """Healthy points, of shape (points, metrics), with the distance to each one's k-th neighbour, and its density."""

    points: Floats
    reach: Floats
    density: Floats
    neighbours: int


def crowd_of(points: Floats, neighbours: int) -> Crowd:
    """Learn `points`, of shape (points, metrics). Repetitions of a point are spread a little (`RESOLUTION`)."""
    count = min(neighbours, len(points) - 1)
    distances = pairwise(points, points)
    np.fill_diagonal(distances, np.inf)
    nearest = np.argpartition(distances, count - 1, axis=1)[:, :count]
    near = np.take_along_axis(distances, nearest, axis=1)
    reach = np.maximum(near.max(axis=1), RESOLUTION)
    density = 1.0 / (np.maximum(near, reach[nearest]).mean(axis=1) + _TINY)
    return Crowd(points, reach, density, count)


RESOLUTION = 0.05
"""Octaves below which points are equal, so that crowds of almost equal points are not infinitely dense."""


def factors(crowd: Crowd, points: Floats) -> Floats:
    """Return the factor of each new point, about 1 among healthy points; of shape (points,)."""
    distances = pairwise(points, crowd.points)
    nearest = np.argpartition(distances, crowd.neighbours - 1, axis=1)[:, : crowd.neighbours]
    near = np.take_along_axis(distances, nearest, axis=1)
    density = 1.0 / (np.maximum(near, crowd.reach[nearest]).mean(axis=1) + _TINY)
    result: Floats = crowd.density[nearest].mean(axis=1) / density
    return result


def pairwise(left: Floats, right: Floats) -> Floats:
    """Return Euclidean distances, of shape (left, right)."""
    squares = (left**2).sum(axis=1)[:, None] + (right**2).sum(axis=1)[None, :] - 2.0 * left @ right.T
    distances: Floats = np.sqrt(np.maximum(squares, 0.0))
    return distances
