"""The pass that each send and receive serves, and recorded transfers that never took place. Pure.

A profiler can record a send and a receive for every pass, even for the first and last virtual stage of a pipeline,
which have no peer in one direction, and before the first pass or after the last.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from holdfast.engines.stragglers.traces.operations import FORWARD, Ints
from holdfast.engines.stragglers.traces.own_times import p2p
from holdfast.engines.stragglers.traces.step_shape import StepShape

NOBODY = -1
"""Value in place of a pass: the send or receive never took place."""
UNKNOWN = -2
"""Value in place of a pass: too many rows are missing to find it."""
_TOUCHING_S = 1e-4


def served_passes(shape: StepShape) -> Ints:
    """Return, for each send or receive, the row of its pass; UNKNOWN for other rows."""
    served = np.full(len(shape.kind), UNKNOWN)
    start_s, end_s = np.median(shape.start_s, axis=1), np.median(shape.end_s, axis=1)
    passes_of = {way: shape.kind == shape.number_of(f"{way}-compute") for way in ("forward", "backward")}
    meets = {(way, end): _meets(shape, way, end) for way in passes_of for end in ("send", "recv")}
    for own in shape.of_workers():
        own = own[np.argsort(shape.sequence[own], kind="stable")]
        for kind in np.unique(shape.kind[own]):
            way, end = p2p(shape.kinds[kind])
            if not way:
                continue
            rows, passes = own[shape.kind[own] == kind], own[passes_of[way][own]]
            does_meet = meets[way, end]
            real = passes[does_meet[passes]]
            if len(rows) > len(real) and len(passes):
                early = end_s[rows] < end_s[passes[0]] - _TOUCHING_S
                late = start_s[rows] > start_s[passes[-1]] + _TOUCHING_S
                needless = late if end == "recv" else early
                served[rows[needless]] = NOBODY
                rows = rows[~needless]
            if len(rows) == len(real):
                served[rows] = real
            elif len(rows) == len(passes) or (end == "recv" and len(rows) + 1 == len(passes)):
                # The very first receive has no previous pass, and may be missing.
                passes = passes[len(passes) - len(rows) :]
                served[rows] = np.where(does_meet[passes], passes, NOBODY)
    return served


def _meets(shape: StepShape, way: str, end: str) -> NDArray[np.bool_]:
    """Return a mask of rows that, as passes, have a stage before them to receive from, or after them to send to."""
    outermost_stage, outermost_chunk = 0, 0
    if (f"{way}-compute" == FORWARD) != (end == "recv"):
        outermost_stage, outermost_chunk = shape.pp_size - 1, int(shape.chunk.max())
    found: NDArray[np.bool_] = (shape.stage != outermost_stage) | (shape.chunk != outermost_chunk)
    return found
