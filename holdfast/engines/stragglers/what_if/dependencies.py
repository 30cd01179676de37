"""Dependencies between the operations of a step, from their timings. Pure.

An operation of a single worker is a node; a transfer between two workers or a collective of several is one node of all
of them. A node begins when all its workers have arrived; its time from then on is its own, without the wait for the
last worker. This separates waiting from transferring.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from holdfast.engines.stragglers.traces.operations import Floats, Ints
from holdfast.engines.stragglers.traces.own_times import is_p2p, own_times, p2p
from holdfast.engines.stragglers.traces.served_passes import NOBODY, UNKNOWN, served_passes
from holdfast.engines.stragglers.traces.step_shape import StepShape
from holdfast.engines.stragglers.what_if.worker_order import runs_beside, waits

_CONTRADICTORY_MAX = 0.05
"""Share of dependencies that may contradict the clock; above it, steps or workers are mixed up."""

_COLLECTIVE = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast")
_OF_ONE_WORKER = ("layernorm-grads-all-reduce",)
"""Collectives among tensor-parallel ranks, which count as one worker."""
_OF_ENDS = ("embedding-grads-all-reduce",)
"""Collectives between the first and the last stage, which share the embedding."""
OF_ALL = ("optimizer-clip-main-grad",)
"""Collectives of the whole model, such as for the norm of the gradients."""


class ContradictoryOrder(ValueError):
    """Contradicting orders of operations on different workers: nothing can be replayed."""


class StepGraph(NamedTuple):
    """Nodes and their dependencies."""

    node_of: Ints
    """The node of each of the shape's rows."""
    own_s: Floats
    """Each node's own time, nodes x steps."""
    is_transfer: NDArray[np.bool_]
    """True for nodes of two workers or more."""
    is_void: NDArray[np.bool_]
    """True for nodes that were recorded but never took place."""
    levels: tuple[GraphLevel, ...]
    """Nodes by level: the predecessors of each are in earlier levels."""

    @property
    def first_row(self) -> Ints:
        """One row of the shape for each node."""
        rows = np.empty(len(self.own_s), np.int64)
        rows[self.node_of[::-1]] = np.arange(len(self.node_of))[::-1]
        return rows


class GraphLevel(NamedTuple):
    """Nodes of one level; `before`: their predecessors in a row; `begins`: where those of each node start in it."""

    nodes: Ints
    before: Ints
    begins: Ints


def graph_of(shape: StepShape) -> StepGraph:
    """Build the graph of a step. Raises ContradictoryOrder if it has a cycle."""
    is_async, served = runs_beside(shape), served_passes(shape)
    node_of, is_transfer = nodes_of(shape, served)
    try:
        levels = _levels(_before(node_of, waits(shape, is_async, served)))
    except ContradictoryOrder:
        # Missing rows can put transfers into the wrong order; the dependencies of passes remain.
        before = _before(node_of, waits(shape, is_async | is_p2p(shape), served))
        levels = _levels(_in_time(before, shape, node_of))
    own_s, is_void = own_times(shape, node_of, len(is_transfer)), np.zeros(len(is_transfer), bool)
    is_void[node_of[served == NOBODY]] = True
    own_s[is_void] = 0.0
    return StepGraph(node_of, own_s, is_transfer, is_void, levels)


def _before(node_of: Ints, pairs: Iterable[tuple[int, int]]) -> list[list[int]]:
    """Return the predecessors of each node."""
    before: list[list[int]] = [[] for _ in range(int(node_of.max()) + 1)]
    for a, b in sorted({(int(node_of[a]), int(node_of[b])) for a, b in pairs}):
        if a != b:
            before[b].append(a)
    return before


def _in_time(before: list[list[int]], shape: StepShape, node_of: Ints) -> list[list[int]]:
    """Drop the few dependencies that contradict the clock, from transfers that were paired wrongly."""
    ready_s = np.full(len(before), -np.inf)
    np.maximum.at(ready_s, node_of, np.median(shape.start_s, axis=1))
    right = [[one for one in earlier if ready_s[one] < ready_s[node]] for node, earlier in enumerate(before)]
    count = sum(map(len, before))
    return right if count - sum(map(len, right)) <= _CONTRADICTORY_MAX * count else before


def group_of(kind: str, worker: int, shape: StepShape) -> tuple[str, int]:
    """Return the group of workers of an operation, by name and number: the worker alone, or those of a collective."""
    stage, dp_rank = worker % shape.pp_size, worker // shape.pp_size
    if kind in OF_ALL:
        return "all", 0
    if kind in _OF_ENDS:
        return "pipeline", dp_rank
    if kind not in _OF_ONE_WORKER and any(name in kind for name in _COLLECTIVE):
        return "stage", stage
    return "worker", worker


def is_communication(kind: str) -> bool:
    """True if an operation is a transfer or a collective, even within one worker."""
    return bool(p2p(kind)[0]) or kind in OF_ALL or any(name in kind for name in _COLLECTIVE)


def nodes_of(shape: StepShape, served: Ints) -> tuple[Ints, NDArray[np.bool_]]:
    """Return each row's node, and a mask of nodes of several workers. `served`: see `served_passes`."""
    names: dict[tuple[object, ...], int] = {}
    node_of = np.empty(len(shape.kind), np.int64)
    number = _numbers(shape, served)
    columns = zip(shape.kind.tolist(), shape.worker.tolist(), number.tolist(), strict=True)
    for row, (kind, worker, sequence) in enumerate(columns):
        way, end = p2p(shape.kinds[kind])
        if way and sequence < 0:
            name: tuple[object, ...] = (row,)
        elif way:
            onward = (1 if way == "forward" else -1) if end == "send" else 0
            stage = (worker % shape.pp_size + onward) % shape.pp_size
            to = worker // shape.pp_size * shape.pp_size + stage
            name = (way, to, sequence)
        else:
            name = (kind, *group_of(shape.kinds[kind], worker, shape), sequence)
        node_of[row] = names.setdefault(name, len(names))
    return node_of, np.bincount(node_of) > 1


def _numbers(shape: StepShape, served: Ints) -> Ints:
    """Number transfers so that a send and its receive have the same number; -1 if there is no other side."""
    number = shape.sequence.copy()
    transfers = np.flatnonzero(served != UNKNOWN)
    number[transfers] = -1
    real = transfers[served[transfers] != NOBODY]
    real = real[np.lexsort((shape.sequence[real], shape.kind[real], shape.worker[real]))]
    apart = np.r_[True, (np.diff(shape.worker[real]) != 0) | (np.diff(shape.kind[real]) != 0)][: len(real)]
    place = np.arange(len(real))
    number[real] = place - np.maximum.accumulate(np.where(apart, place, 0)) if len(real) else place
    return number


def _levels(before: list[list[int]]) -> tuple[GraphLevel, ...]:
    levels = []
    after: list[list[int]] = [[] for _ in before]
    for node, earlier in enumerate(before):
        for one in earlier:
            after[one].append(node)
    open_ = [len(earlier) for earlier in before]
    level = [node for node, count in enumerate(open_) if not count]
    placed = 0
    while level:
        placed += len(level)
        sizes = [len(before[node]) for node in level]
        levels.append(
            GraphLevel(
                np.array(level),
                np.array([one for node in level for one in before[node]], np.int64),
                np.cumsum([0, *sizes[:-1]]),
            )
        )
        following = []
        for node in level:
            for one in after[node]:
                open_[one] -= 1
                if not open_[one]:
                    following.append(one)
        level = following
    if placed < len(before):
        raise ContradictoryOrder(f"{len(before) - placed} of {len(before)} operations wait for one another in a circle")
    return tuple(levels)
