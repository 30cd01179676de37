"""Metrics of a job's ranks over recent time, as one array, relative to the job's usual level. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

METRICS = ("cpu_cores", "memory_bytes", "io_bytes_per_s", "sent_bytes_per_s", "collectives_per_s")
"""Metrics of each rank: cores, memory, reads and writes of its processes, its node's sent bytes, collectives begun."""

FLOORS: Mapping[str, float] = {
    "cpu_cores": 0.05,
    "memory_bytes": 64e6,
    "io_bytes_per_s": 1e6,
    "sent_bytes_per_s": 1e6,
    "collectives_per_s": 0.5,
}
"""Values below which a metric is practically zero: ten times almost nothing is no anomaly."""

OCTAVES_MAX = 6.0
"""Doublings from the usual level to which a metric is clipped."""


class Sample(NamedTuple):
    """Measurements of one rank in the interval `slot` (time divided by the length of an interval)."""

    rank: int
    slot: int
    values: tuple[float | None, ...]


class Window(NamedTuple):
    """`values[rank, metric, time]`, NaN without a sample; `ranks` and `slots` label the first and last axis."""

    ranks: tuple[int, ...]
    slots: tuple[int, ...]
    values: Floats


def window_of(samples: Iterable[Sample], slots: Sequence[int]) -> Window:
    """Combine the samples of these slots. If a rank has two in one slot, the later one counts."""
    found = [sample for sample in samples if slots[0] <= sample.slot <= slots[-1]]
    ranks = tuple(sorted({sample.rank for sample in found}))
    place = {rank: number for number, rank in enumerate(ranks)}
    values = np.full((len(ranks), len(METRICS), len(slots)), np.nan)
    for sample in found:
        values[place[sample.rank], :, sample.slot - slots[0]] = [
            np.nan if value is None else value for value in sample.values
        ]
    return Window(ranks, tuple(slots), values)


def usual_level(window: Window) -> Floats:
    """Return the level of each metric over all ranks and times, of shape (metrics,); never below its floor."""
    floors = np.array([FLOORS[name] for name in METRICS])
    spread = window.values.transpose(1, 0, 2).reshape(len(METRICS), -1)
    with np.errstate(all="ignore"):
        levels = np.array([np.median(row[~np.isnan(row)]) if (~np.isnan(row)).any() else 0.0 for row in spread])
    result: Floats = np.maximum(levels, floors)
    return result


def in_octaves(window: Window, level: Floats) -> Window:
    """Convert each value to doublings above or below the usual level: 0 is usual, -1 is half of it. Values below the
    floor count as an eighth of it, so that an idle rank is far off, but not infinitely."""
    floors = np.array([FLOORS[name] for name in METRICS])[None, :, None] / 8
    with np.errstate(invalid="ignore"):
        octaves = np.log2(np.maximum(window.values, floors) / np.maximum(level[None, :, None], floors))
    return Window(window.ranks, window.slots, np.clip(octaves, -OCTAVES_MAX, OCTAVES_MAX))


def filled(window: Window, share_min: float = 0.5) -> Window:
    """Drop ranks with too few samples, and fill gaps with the last value before them, or the next. A metric that is not
    measured is 0 everywhere: as usual."""
    values = window.values.copy()
    unmeasured = np.isnan(values).all(axis=(0, 2))
    values[:, unmeasured, :] = 0.0
    known = (~np.isnan(values)).mean(axis=(1, 2)) >= share_min
    values = values[known]
    for row in values.reshape(-1, values.shape[-1]):
        missing = np.isnan(row)
        if missing.all():
            row[:] = 0.0
        elif missing.any():
            there = np.flatnonzero(~missing)
            before = np.searchsorted(there, np.arange(row.size), side="right") - 1
            row[:] = row[there[np.maximum(before, 0)]]
    return Window(tuple(rank for rank, keep in zip(window.ranks, known, strict=True) if keep), window.slots, values)
