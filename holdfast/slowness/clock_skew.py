"""Clocks of workers that differ, set right by what ends at one moment on several of them. Pure."""

from __future__ import annotations

from collections import defaultdict
from itertools import combinations

import numpy as np

from holdfast.slowness.dependencies import OF_ALL, nodes_of
from holdfast.slowness.operations import Floats
from holdfast.slowness.own_times import issued_together
from holdfast.slowness.step_shape import StepShape

_SKEW_S = 0.002
"""Less is within what the ends of one transfer differ by."""


def without_skew(shape: StepShape) -> tuple[StepShape, float]:
    """The steps by one clock, and by how much the workers' differed at most, in seconds (0.0: too little to matter)."""
    behind_s = _behind(shape)
    greatest_s = float(np.ptp(behind_s)) if len(behind_s) else 0.0
    if greatest_s < _SKEW_S:
        return shape, 0.0
    return shape._replace(start_s=shape.start_s - behind_s[shape.worker][:, None]), greatest_s


def _behind(shape: StepShape) -> Floats:
    """How much later each worker's clock shows the same moment than the first one's, in seconds."""
    differences: dict[tuple[int, int], list[float]] = defaultdict(list)
    alone = np.ones(len(shape.kind), bool)
    # The end of what was issued together is that of the last of it.
    alone[[row for rows in issued_together(shape) for row in rows]] = False
    ends_s = shape.end_s
    node_of, is_transfer = nodes_of(shape)
    members: dict[int, list[int]] = defaultdict(list)
    # Workers leave what all take part in when they have done their own share of it, not at one moment.
    apart = np.isin(shape.kind, [number for number, kind in enumerate(shape.kinds) if kind not in OF_ALL])
    for row in np.flatnonzero(is_transfer[node_of] & alone & apart).tolist():
        members[int(node_of[row])].append(row)
    for rows in members.values():
        pairs = combinations(rows, 2) if len(rows) == 2 else ((rows[0], row) for row in rows[1:])
        for a, b in pairs:
            differences[int(shape.worker[a]), int(shape.worker[b])].append(float(np.median(ends_s[b] - ends_s[a])))
    near: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for (a, b), found in differences.items():
        near[a].append((b, float(np.median(found))))
        near[b].append((a, -float(np.median(found))))
    behind_s = np.zeros(shape.dp_size * shape.pp_size)
    reached: set[int] = set()
    for root in sorted(near):
        waiting = [] if root in reached else [root]
        reached.update(waiting)
        for one in waiting:
            for other, later_s in near[one]:
                if other not in reached:
                    reached.add(other)
                    behind_s[other] = behind_s[one] + later_s
                    waiting.append(other)
    return behind_s
