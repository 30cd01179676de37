"""Estimated times of operations that were not recorded in some steps. Pure."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from holdfast.engines.stragglers.traces.operations import Floats, Ints

_NEIGHBORS = 4
"""Operations before and after it that are compared: what an operation begins or ends with is launched near it."""
_STEPS_MIN = 2
"""Minimum steps to find the neighbour with which an operation begins or ends."""


def filled(start_s: Floats, end_s: Floats, worker: Ints) -> tuple[Floats, Floats]:
    """Return starts and ends, rows x steps, with NaN replaced. An operation begins and ends at a fixed distance from
    some neighbour's start or end on its worker: that with the most constant distance in other steps is used."""
    start_s, end_s = start_s.copy(), end_s.copy()
    order = np.argsort(worker, kind="stable")
    for own in np.split(order, np.flatnonzero(np.diff(worker[order])) + 1):
        if np.isnan(start_s[own]).any():
            start_s[own], end_s[own] = _of_worker(start_s[own], end_s[own])
    return start_s, end_s


def _of_worker(start_s: Floats, end_s: Floats) -> tuple[Floats, Floats]:
    usual_s = np.nanmedian(start_s, axis=1)
    order = np.argsort(usual_s, kind="stable")
    back = np.argsort(order, kind="stable")
    start_s, end_s, usual_s = start_s[order], end_s[order], usual_s[order]
    duration_s = np.nanmedian(end_s - start_s, axis=1)
    filled_start_s, filled_end_s = start_s.copy(), end_s.copy()
    for row in np.flatnonzero(np.isnan(start_s).any(axis=1)).tolist():
        near = [one for one in range(row - _NEIGHBORS, row + _NEIGHBORS + 1) if one != row and 0 <= one < len(start_s)]
        anchors_s = np.concatenate((start_s[near], end_s[near]))
        filled_start_s[row] = _beside(start_s[row], anchors_s)
        filled_end_s[row] = _beside(end_s[row], anchors_s)
    for column in np.flatnonzero(np.isnan(filled_start_s).any(axis=0)).tolist():
        _by_distance(filled_start_s[:, column], usual_s)
    filled_end_s = np.where(np.isnan(filled_end_s), filled_start_s + duration_s[:, None], filled_end_s)
    return filled_start_s[back], np.maximum(filled_start_s, filled_end_s)[back]


def _beside(times_s: Floats, anchors_s: Floats) -> Floats:
    """Return the times (steps), with NaN replaced by the most constant of the anchors (anchors x steps)."""
    missing = np.isnan(times_s)
    apart_s = times_s - anchors_s
    known = (~np.isnan(apart_s)).sum(axis=1) >= _STEPS_MIN
    if not known.any():
        return times_s
    anchors_s, apart_s = anchors_s[known], apart_s[known]
    usual_s = np.nanmedian(apart_s, axis=1, keepdims=True)
    strays_s = np.nanmedian(np.abs(apart_s - usual_s), axis=1)
    for anchor in np.argsort(strays_s, kind="stable")[::-1]:
        is_known: NDArray[np.bool_] = missing & ~np.isnan(anchors_s[anchor])
        times_s = np.where(is_known, anchors_s[anchor] + usual_s[anchor], times_s)
    return times_s


def _by_distance(times_s: Floats, usual_s: Floats) -> None:
    """Fill times without a neighbour: at the usual distance from known times."""
    there = ~np.isnan(times_s)
    if there.any():
        behind_s = np.interp(usual_s, usual_s[there], (times_s - usual_s)[there])
        times_s[~there] = (usual_s + behind_s)[~there]
    else:
        times_s[:] = usual_s
