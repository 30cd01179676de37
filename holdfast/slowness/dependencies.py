"""What had to wait for what within a step, from the timings of its operations. Pure.

An operation of one worker alone is a node; a transfer between two, or a collective of several, is one node of all of
them. A node begins when each of its workers has come to it, and what it then takes is its own time, without the wait
for the last one: that is how waiting and transferring are told apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from holdfast.slowness.operations import FORWARD, Floats, Ints
from holdfast.slowness.own_times import is_p2p, own_times, p2p
from holdfast.slowness.step_shape import StepShape

_ASYNC_SHARE = 0.05
"""Communication of a kind that overlaps with compute more often than this runs beside it, not before it."""
_TOUCHING = 0.05
_TOUCHING_S = 1e-4
"""Overlaps of no more than this come from how times are taken."""

_ALWAYS = 0.95
"""What comes before something else in more steps than this has to."""

_COLLECTIVE = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast")
_OF_ONE_WORKER = ("layernorm-grads-all-reduce",)
"""Among the tensor-parallel ranks, which count as one worker."""
_OF_ENDS = ("embedding-grads-all-reduce",)
"""Between the first and the last stage, which share the embedding."""
OF_ALL = ("optimizer-clip-main-grad",)
"""The gradients' norm is that of the whole model."""


class Contradictory(ValueError):
    """The order of operations on one worker contradicts that on another: nothing can be replayed."""


class Graph(NamedTuple):
    """Nodes and what each waits for.

    `node_of` maps the shape's rows to nodes. `own_s` is what a node takes itself, nodes x steps. `levels`: nodes whose
    predecessors all stand in earlier ones; with each level the predecessors, one after another, and where each node's
    begin. `is_transfer`: of two workers or more.
    """

    node_of: Ints
    own_s: Floats
    is_transfer: NDArray[np.bool_]
    levels: tuple[Level, ...]

    @property
    def first_row(self) -> Ints:
        """For each node one row of the shape."""
        rows = np.empty(len(self.own_s), np.int64)
        rows[self.node_of[::-1]] = np.arange(len(self.node_of))[::-1]
        return rows


class Level(NamedTuple):
    """Nodes that can be placed together once the earlier levels are. `begins` cuts `before`, one piece per node."""

    nodes: Ints
    before: Ints
    begins: Ints


def graph_of(shape: StepShape) -> Graph:
    """The graph of a step.

    Raises:
        Contradictory: it has a cycle.
    """
    node_of, is_transfer = nodes_of(shape)
    is_async = _runs_beside(shape)
    try:
        levels = _levels(_before(shape, node_of, is_async))
    except Contradictory:
        # Rows that are missing can put transfers into the wrong order; what each pass waits for stays.
        levels = _levels(_before(shape, node_of, is_async | is_p2p(shape)))
    return Graph(node_of, own_times(shape, node_of, len(is_transfer)), is_transfer, levels)


def _before(shape: StepShape, node_of: Ints, is_async: NDArray[np.bool_]) -> list[list[int]]:
    """For each node those that it waits for."""
    before: list[list[int]] = [[] for _ in range(int(node_of.max()) + 1)]
    for a, b in sorted({(int(node_of[a]), int(node_of[b])) for a, b in _edges(shape, is_async)}):
        if a != b:
            before[b].append(a)
    return before


def group_of(kind: str, worker: int, shape: StepShape) -> tuple[str, int]:
    """Which group of workers an operation meets, by name and number: the worker alone, or those of a collective."""
    stage, dp_rank = worker % shape.pp_size, worker // shape.pp_size
    if kind in OF_ALL:
        return "all", 0
    if kind in _OF_ENDS:
        return "pipeline", dp_rank
    if kind not in _OF_ONE_WORKER and any(name in kind for name in _COLLECTIVE):
        return "stage", stage
    return "worker", worker


def nodes_of(shape: StepShape) -> tuple[Ints, NDArray[np.bool_]]:
    """For each row its node, and whether a node is one of several workers."""
    names: dict[tuple[object, ...], int] = {}
    node_of = np.empty(len(shape.kind), np.int64)
    columns = zip(shape.kind.tolist(), shape.worker.tolist(), shape.sequence.tolist(), strict=True)
    for row, (kind, worker, sequence) in enumerate(columns):
        way, end = p2p(shape.kinds[kind])
        if way:
            onward = (1 if way == "forward" else -1) if end == "send" else 0
            stage = (worker % shape.pp_size + onward) % shape.pp_size
            to = worker // shape.pp_size * shape.pp_size + stage
            name: tuple[object, ...] = (way, to, sequence)
        else:
            name = (kind, *group_of(shape.kinds[kind], worker, shape), sequence)
        node_of[row] = names.setdefault(name, len(names))
    return node_of, np.bincount(node_of) > 1


def _runs_beside(shape: StepShape) -> NDArray[np.bool_]:
    """Which rows are communication that compute of the same worker does not wait for, by what the timings show."""
    compute = shape.is_compute
    beside = np.zeros(len(shape.kind))
    ends_s = shape.end_s
    sample = range(0, len(shape.steps), max(1, len(shape.steps) // 8))
    for worker in np.unique(shape.worker[compute]):
        own, computes = np.flatnonzero((shape.worker == worker) & ~compute), (shape.worker == worker) & compute
        for column in sample:
            order = np.argsort(shape.start_s[computes, column])
            times_s = np.stack((shape.start_s[computes, column][order], ends_s[computes, column][order]), 1)
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


def _edges(shape: StepShape, is_async: NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    usual_start_s = np.median(shape.start_s, axis=1)
    usual_s = np.median(shape.duration_s, axis=1)
    compute = shape.is_compute
    for worker in np.unique(shape.worker):
        own = np.flatnonzero(shape.worker == worker)
        main = own[~is_async[own]]
        slots = list(_slots(main[np.argsort(usual_start_s[main], kind="stable")], usual_start_s, usual_s, compute))
        for earlier, later in pairwise(slots):
            yield from ((a, b) for a in earlier for b in later)
        for kind in np.unique(shape.kind[own[is_async[own]]]):
            rows = own[shape.kind[own] == kind]
            rows = rows[np.argsort(shape.sequence[rows])]
            yield from zip(rows[:-1].tolist(), rows[1:].tolist(), strict=True)
            yield from _beside(shape, rows, slots)


def _slots(rows: Ints, start_s: Floats, length_s: Floats, compute: NDArray[np.bool_]) -> Iterator[list[int]]:
    """A worker's operations in order; what was issued together, as a send with a receive, stands together."""
    slot: list[int] = []
    for row in rows.tolist():
        together = slot and not compute[row] and not compute[slot[0]]
        if together:
            shortest_s = min(length_s[row], *(length_s[other] for other in slot))
            ends_s = min(start_s[other] + length_s[other] for other in slot)
            together = shortest_s > 0 and start_s[row] < ends_s - shortest_s / 2
        if slot and not together:
            yield slot
            slot = []
        slot.append(row)
    if slot:
        yield slot


def _beside(shape: StepShape, rows: Ints, slots: list[list[int]]) -> Iterator[tuple[int, int]]:
    """What communication that runs beside compute waits for, and what waits for it, on one worker."""
    way, end = p2p(shape.kinds[shape.kind[rows[0]]])
    if way:
        computes = _computes(shape, f"{way}-compute", int(shape.worker[rows[0]]), end)
        pairs = zip(rows.tolist(), computes, strict=False)
        yield from ((row, compute) if end == "recv" else (compute, row) for row, compute in pairs)
    ends_s = shape.end_s
    begin_s = np.stack([shape.start_s[slot].min(axis=0) for slot in slots])
    end_s = np.stack([ends_s[slot].max(axis=0) for slot in slots])
    for row in rows.tolist():
        ended = np.flatnonzero((end_s <= shape.start_s[row] + _TOUCHING_S).mean(axis=1) > _ALWAYS)
        yield from ((one, row) for one in (slots[ended[-1]] if len(ended) else ()))
        if not way:
            begun = np.flatnonzero((begin_s >= ends_s[row] - _TOUCHING_S).mean(axis=1) > _ALWAYS)
            yield from ((row, one) for one in (slots[begun[0]] if len(begun) else ()))


def _computes(shape: StepShape, kind: str, worker: int, end: str) -> list[int]:
    """The passes that receive from, or send to, another stage, in their order."""
    rows = np.flatnonzero(shape.of_kind(kind) & (shape.worker == worker))
    rows = rows[np.argsort(shape.sequence[rows])]
    stage, last_chunk = worker % shape.pp_size, int(shape.chunk.max())
    first = (0, 0)
    last = (shape.pp_size - 1, last_chunk)
    outermost = first if (kind == FORWARD) == (end == "recv") else last
    return [row for row in rows.tolist() if (stage, int(shape.chunk[row])) != outermost]


def _levels(before: list[list[int]]) -> tuple[Level, ...]:
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
            Level(
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
        raise Contradictory(f"{len(before) - placed} of {len(before)} operations wait for one another in a circle")
    return tuple(levels)
