"""Steps of one shape: each operation that recurs in every step is a row, each step a column. Pure."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from holdfast.engines.stragglers.traces.missing_rows import filled
from holdfast.engines.stragglers.traces.operations import BACKWARD, COMPUTE, FORWARD, Floats, Ints, Operations

_OCCASIONAL = 0.5
"""Share of workers below which an operation is occasional: where it is absent it took no time."""


class StepShape(NamedTuple):
    """Operations x steps. Columns of equal length describe the rows; times in seconds from each step's start. `worker`
    is dp_rank * pp_size + stage. Where `was_recorded` is false, times are estimated from the row's neighbours."""

    kinds: tuple[str, ...]
    dp_size: int
    pp_size: int
    steps: Ints
    kind: Ints
    worker: Ints
    sequence: Ints
    chunk: Ints
    microbatch: Ints
    start_s: Floats
    duration_s: Floats
    was_recorded: NDArray[np.bool_]

    @property
    def dp_rank(self) -> Ints:
        return self.worker // self.pp_size

    @property
    def stage(self) -> Ints:
        return self.worker % self.pp_size

    @property
    def end_s(self) -> Floats:
        return self.start_s + self.duration_s

    def of_workers(self) -> list[Ints]:
        """Return the rows of each worker, in order."""
        order = np.argsort(self.worker, kind="stable")
        return np.split(order, np.flatnonzero(np.diff(self.worker[order])) + 1)

    def of_kind(self, kind: str) -> NDArray[np.bool_]:
        return np.equal(self.kind, self.number_of(kind))

    def number_of(self, kind: str) -> int:
        """Return the number of a kind; -1 if no row has it."""
        return self.kinds.index(kind) if kind in self.kinds else -1

    @property
    def is_compute(self) -> NDArray[np.bool_]:
        return self.of_kind(FORWARD) | self.of_kind(BACKWARD)


def shapes(operations: Operations) -> list[StepShape]:
    """Group the steps by their number of microbatches, the largest group first."""
    forward = operations.of_kind(FORWARD if FORWARD in operations.kinds else BACKWARD)
    steps, at = np.unique(operations.step, return_inverse=True)
    most = np.full(len(steps), -1)
    np.maximum.at(most, at[forward], operations.sequence[forward])
    groups = [np.flatnonzero(most == count) for count in np.unique(most[most >= 0])]
    return [_shape(operations, steps[group]) for group in sorted(groups, key=len, reverse=True)]


def _shape(operations: Operations, steps: Ints) -> StepShape:
    rows = np.flatnonzero(np.isin(operations.step, steps))
    column = np.searchsorted(steps, operations.step[rows])
    worker = operations.dp_rank[rows] * operations.pp_size + operations.stage[rows]
    width = int(operations.sequence[rows].max()) + 2
    key = (worker * len(operations.kinds) + operations.kind[rows]) * width + operations.sequence[rows]
    _, first, at = np.unique(key, return_index=True, return_inverse=True)
    start_s, duration_s = (np.full((len(first), len(steps)), np.nan) for _ in range(2))
    start_s[at, column] = operations.start_s[rows]
    duration_s[at, column] = operations.duration_s[rows]
    start_s -= np.nanmin(start_s, axis=0)
    shape = StepShape(
        kinds=operations.kinds,
        dp_size=operations.dp_size,
        pp_size=operations.pp_size,
        steps=steps,
        kind=operations.kind[rows][first],
        worker=worker[first],
        sequence=operations.sequence[rows][first],
        chunk=operations.chunk[rows][first],
        microbatch=operations.microbatch[rows][first],
        start_s=start_s,
        duration_s=duration_s,
        was_recorded=~np.isnan(duration_s),
    )
    return shape if shape.was_recorded.all() else _filled(shape)


def _filled(shape: StepShape) -> StepShape:
    start_s, end_s = filled(shape.start_s, shape.end_s, shape.worker)
    occasional = np.zeros(len(shape.kind), bool)
    for kind, name in enumerate(shape.kinds):
        rows_of = shape.kind == kind
        if name not in COMPUTE and rows_of.any():
            occasional |= rows_of & (shape.was_recorded[rows_of].mean() < _OCCASIONAL)
    absent_s = np.where(occasional[:, None], 0.0, end_s - start_s)
    return shape._replace(
        start_s=start_s,
        duration_s=np.where(shape.was_recorded, shape.duration_s, absent_s),
        was_recorded=shape.was_recorded | occasional[:, None],
    )
