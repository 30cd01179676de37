"""Dependencies between operations of one worker, from their timings. Pure.

An operation that begins as another ends had to wait for it; operations that overlap did not. For communication that
runs beside passes, dependencies follow from the pass and the chunk that it serves.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from holdfast.engines.stragglers.traces.operations import BACKWARD, FORWARD, Floats, Ints
from holdfast.engines.stragglers.traces.own_times import p2p
from holdfast.engines.stragglers.traces.step_shape import StepShape

_ASYNC_SHARE = 0.05
"""Share of overlaps with compute above which a kind of communication runs beside it, not before it."""
_TOUCHING = 0.05
_TOUCHING_S = 1e-4
_APART_S = 5e-4
"""Overlaps up to this are measurement errors."""
_ALWAYS = 0.95
"""Share of steps in which one operation precedes another from which it is a dependency."""


def runs_beside(shape: StepShape) -> NDArray[np.bool_]:
    """Return a mask of communication that compute of the same worker does not wait for, by the timings."""
    compute = shape.is_compute
    beside = np.zeros(len(shape.kind))
    ends_s = shape.end_s
    sample = range(0, len(shape.steps), max(1, len(shape.steps) // 8))
    for rows in shape.of_workers():
        own, computes = rows[~compute[rows]], rows[compute[rows]]
        if not len(computes):
            continue
        for column in sample:
            times_s = np.stack((shape.start_s[computes, column], ends_s[computes, column]), 1)
            times_s = times_s[np.argsort(times_s[:, 0])]
            busy_s = np.repeat(np.cumsum(np.diff(times_s, axis=1)), 2)
            busy_s[::2] -= np.diff(times_s, axis=1)[:, 0]
            at_s = np.maximum.accumulate(times_s.ravel())
            start_s, end_s = shape.start_s[own, column], ends_s[own, column]
            overlap_s = np.interp(end_s, at_s, busy_s) - np.interp(start_s, at_s, busy_s)
            beside[own] += overlap_s > np.maximum(_TOUCHING * (end_s - start_s), _TOUCHING_S)
    share = {
        kind: float(beside[shape.kind == kind].mean()) / len(sample)
        for kind in np.unique(shape.kind[~compute]).tolist()
    }
    transfers = [kind for kind in share if p2p(shape.kinds[kind])[0]]
    if any(share[kind] > _ASYNC_SHARE for kind in transfers):
        share.update(dict.fromkeys(transfers, 1.0))
    return np.isin(shape.kind, [kind for kind, found in share.items() if found > _ASYNC_SHARE])


def waits(shape: StepShape, is_async: NDArray[np.bool_], served: Ints) -> Iterator[tuple[int, int]]:
    """Yield pairs of rows of one worker, the second of which waits for the first. `served`: see `served_passes`."""
    start_s, end_s = np.median(shape.start_s, axis=1), np.median(shape.end_s, axis=1)
    for own in shape.of_workers():
        main = own[~is_async[own]]
        main = main[np.argsort(start_s[main], kind="stable")]
        yield from _one_after_another(main, start_s, end_s)
        for kind in np.unique(shape.kind[own[is_async[own]]]):
            rows = own[shape.kind[own] == kind]
            rows = rows[np.argsort(shape.sequence[rows])]
            yield from zip(rows[:-1].tolist(), rows[1:].tolist(), strict=True)
            yield from _beside(shape, rows, main, served)


def _one_after_another(rows: Ints, start_s: Floats, end_s: Floats) -> Iterator[tuple[int, int]]:
    """Yield dependencies of rows, sorted by start, on those that were over when they began, without implied ones."""
    open_: list[int] = []
    starts_s, ends_s = (dict(zip(rows.tolist(), times_s[rows].tolist(), strict=True)) for times_s in (start_s, end_s))
    for row in starts_s:
        over = [one for one in open_ if _is_over(starts_s[one], ends_s[one], starts_s[row], ends_s[row])]
        latest_s = max((starts_s[one] for one in over), default=0.0)
        implied = {one for one in over if ends_s[one] < latest_s}
        yield from ((one, row) for one in over if one not in implied)
        open_ = [one for one in open_ if one not in implied] + [row]


def _is_over(start_s: float, end_s: float, next_start_s: float, next_end_s: float) -> bool:
    shorter_s = min(end_s - start_s, next_end_s - next_start_s)
    return next_start_s >= end_s - min(shorter_s / 2, max(_TOUCHING * shorter_s, _APART_S))


def _beside(shape: StepShape, rows: Ints, main: Ints, served: Ints) -> Iterator[tuple[int, int]]:
    """Yield dependencies of one kind of communication that runs beside compute, on one worker."""
    kind = shape.kinds[shape.kind[rows[0]]]
    way, end = p2p(kind)
    if way:
        pairs = ((row, int(served[row])) for row in rows.tolist() if served[row] >= 0)
        yield from ((row, one) if end == "recv" else (one, row) for row, one in pairs)
    is_gather = "all-gather" in kind
    chunks = {} if way else _passes_of_chunks(shape, main, is_gather)
    start_s, end_s = shape.start_s[main], shape.end_s[main]
    usual_start_s, usual_end_s = np.median(start_s, axis=1), np.median(end_s, axis=1)
    previous = -1
    for row in rows.tolist():
        needed = chunks.get(int(shape.chunk[row]), -1)
        over = (end_s <= shape.start_s[row] + _TOUCHING_S).mean(axis=1) > _ALWAYS
        if needed >= 0 and not is_gather and over[main == needed].all():
            yield needed, row
        elif over.any() and not _follows(shape, previous, row):
            yield from ((int(one), row) for one in main[over & (usual_end_s >= usual_start_s[over].max())])
        if needed >= 0 and is_gather:
            yield row, needed
        elif not way and (row == rows[-1] or is_gather):
            # Other communication is awaited when all of it is needed; what only follows one did not wait for it.
            later = (start_s >= shape.end_s[row] - _TOUCHING_S).mean(axis=1) > _ALWAYS
            if later.any():
                yield from ((row, int(one)) for one in main[later & (usual_start_s <= usual_end_s[later].min())])
        previous = row


def _follows(shape: StepShape, previous: int, row: int) -> bool:
    """True if a row began as the previous one of its kind ended, and so waited for nothing else."""
    gap_s = np.median(shape.start_s[row] - shape.end_s[previous]) if previous >= 0 else np.inf
    return bool(gap_s <= _APART_S)


def _passes_of_chunks(shape: StepShape, main: Ints, is_gather: bool) -> dict[int, int]:
    """Return, for each chunk, the pass that waits for its parameters, or after which its gradients are complete."""
    name = FORWARD if is_gather else BACKWARD
    passes = main[shape.kind[main] == shape.number_of(name)]
    return {int(shape.chunk[row]): int(row) for row in (passes[::-1] if is_gather else passes)}
