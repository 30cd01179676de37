"""Which pass each send and receive serves, and which of them were recorded and never took place. Pure.

A profiler may write down a send and a receive for every pass, also for those of a pipeline's very first and very last
virtual stage, which have nobody to send to or to receive from, and before the first pass or after the last.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from holdfast.engines.stragglers.traces.operations import FORWARD, Ints
from holdfast.engines.stragglers.traces.own_times import p2p
from holdfast.engines.stragglers.traces.step_shape import StepShape

NOBODY = -1
"""Instead of a pass: the send or receive never took place."""
UNKNOWN = -2
"""Instead of a pass: so many rows are missing that nothing tells."""
_TOUCHING_S = 1e-4


def served_passes(shape: StepShape) -> Ints:
    """For each row that is a send or receive the row of the pass that it brings to or takes from; else UNKNOWN."""
    served = np.full(len(shape.kind), UNKNOWN)
    start_s, end_s = np.median(shape.start_s, axis=1), np.median(shape.end_s, axis=1)
    passes_of = {way: shape.kind == _number(shape, f"{way}-compute") for way in ("forward", "backward")}
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
                # The very first receive has nothing before it, and may be missing.
                passes = passes[len(passes) - len(rows) :]
                served[rows] = np.where(does_meet[passes], passes, NOBODY)
    return served


def _number(shape: StepShape, kind: str) -> int:
    return shape.kinds.index(kind) if kind in shape.kinds else -1


def _meets(shape: StepShape, way: str, end: str) -> NDArray[np.bool_]:
    """Which rows, if they are passes, have a stage before them to receive from, or behind them to send to."""
    outermost_stage, outermost_chunk = 0, 0
    if (f"{way}-compute" == FORWARD) != (end == "recv"):
        outermost_stage, outermost_chunk = shape.pp_size - 1, int(shape.chunk.max())
    found: NDArray[np.bool_] = (shape.stage != outermost_stage) | (shape.chunk != outermost_chunk)
    return found
