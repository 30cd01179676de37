"""Correction of workers' clocks, by operations that end at the same moment on several workers. Pure."""

from __future__ import annotations

from collections import defaultdict
from heapq import heappop, heappush
from math import ceil

import numpy as np

from holdfast.engines.stragglers.traces.operations import Floats
from holdfast.engines.stragglers.traces.own_times import issued_together
from holdfast.engines.stragglers.traces.served_passes import served_passes
from holdfast.engines.stragglers.traces.step_shape import StepShape
from holdfast.engines.stragglers.what_if.dependencies import OF_ALL, nodes_of

_AGREE = 0.25
"""Share of a pair's differences that have to agree. It is small: most ends may be late for reasons of their own."""
_AGREE_MIN = 3
"""Minimum number of them: two may agree by chance."""
_SKEW_S = 0.002
"""Skew below this is within the noise of transfers' ends."""


def without_skew(shape: StepShape) -> tuple[StepShape, float]:
    """Return the steps on one clock, and the greatest difference of clocks in seconds (0.0: negligible)."""
    ahead_s = _ahead(shape)
    greatest_s = float(np.ptp(ahead_s)) if len(ahead_s) else 0.0
    if greatest_s < _SKEW_S:
        return shape, 0.0
    return shape._replace(start_s=shape.start_s - ahead_s[shape.worker][:, None]), greatest_s


def _ahead(shape: StepShape) -> Floats:
    """Return by how many seconds each worker's clock is ahead of that of the first worker that it is connected with.

    Workers are connected by common operations, directly or over others: along a tree, the most certain pairs first.
    """
    near: dict[int, list[tuple[float, int, float]]] = defaultdict(list)
    for (a, b), found in _differences(shape).items():
        later_s, strays_s = _most_agree_on(np.concatenate(found))
        near[a].append((strays_s, b, later_s))
        near[b].append((strays_s, a, -later_s))
    ahead_s = np.zeros(shape.dp_size * shape.pp_size)
    reached: set[int] = set()
    for root in sorted(near):
        waiting = [(0.0, root, 0.0)] if root not in reached else []
        while waiting:
            _, one, one_ahead_s = heappop(waiting)
            if one not in reached:
                reached.add(one)
                ahead_s[one] = one_ahead_s
                for strays_s, other, later_s in near[one]:
                    heappush(waiting, (strays_s, other, one_ahead_s + later_s))
    return ahead_s


def _differences(shape: StepShape) -> dict[tuple[int, int], list[Floats]]:
    """Return, for pairs of workers, by how much the second's end of a common operation is later than the first's."""
    node_of, is_transfer = nodes_of(shape, served_passes(shape))
    # Operations issued together end with the last of them.
    alone = np.ones(len(shape.kind), bool)
    for rows in issued_together(shape):
        real = [row for row in rows if is_transfer[node_of[row]]]
        alone[real] = len(real) < 2
    # Workers leave an operation of all workers when their own share is done, not at the same moment.
    apart = np.isin(shape.kind, [number for number, kind in enumerate(shape.kinds) if kind not in OF_ALL])
    members: dict[int, list[int]] = defaultdict(list)
    for row in np.flatnonzero(is_transfer[node_of] & apart).tolist():
        members[int(node_of[row])].append(row)
    ends_s = np.where(shape.was_recorded, shape.end_s, np.nan)
    sure: dict[tuple[int, int], list[Floats]] = defaultdict(list)
    unsure: dict[tuple[int, int], list[Floats]] = defaultdict(list)
    for first, *others in members.values():
        for row in others:
            a, b = (first, row) if shape.worker[first] < shape.worker[row] else (row, first)
            found = sure if alone[a] and alone[b] else unsure
            later_s = ends_s[b] - ends_s[a]
            found[int(shape.worker[a]), int(shape.worker[b])].append(later_s[~np.isnan(later_s)])
    return {pair: found for pair, found in (unsure | sure).items() if any(map(len, found))}


def _most_agree_on(values: Floats) -> tuple[float, float]:
    """Return the value around which values are densest, and the width of that cluster. Operations that were issued
    together end late on either side, for various reasons; others end at one moment."""
    count = max(ceil(_AGREE * len(values)), min(len(values), _AGREE_MIN))
    values = np.sort(values)
    widths = values[count - 1 :] - values[: len(values) - count + 1]
    first = int(np.argmin(widths))
    return float(np.median(values[first : first + count])), float(widths[first])
