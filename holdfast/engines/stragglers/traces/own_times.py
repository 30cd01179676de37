"""Own times of transfers and collectives, without the wait for the last worker. Pure."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from holdfast.engines.stragglers.traces.operations import Floats, Ints
from holdfast.engines.stragglers.traces.step_shape import StepShape

_SAME_S = 1e-6
_AT_ONCE_S = 1e-4


def p2p(kind: str) -> tuple[str, str]:
    """Return (`forward` or `backward`, `send` or `recv`); empty strings if not point to point."""
    way, _, end = kind.rpartition("-")
    return (way, end) if end in ("send", "recv") and way in ("forward", "backward") else ("", "")


def own_times(shape: StepShape, node_of: Ints, nodes: int) -> Floats:
    """Return each node's time after all its workers have arrived, nodes x steps. Sends and receives that a worker
    issued together are recorded as ending with the last of them. A transfer hidden behind a later one on both sides
    gets the usual time of its kind; if the row of the last worker is missing, that of the node."""
    ready_s, over_s = _between(shape, node_of, nodes)
    own_s: Floats = np.maximum(over_s - ready_s, 0.0)
    workers = np.bincount(node_of, minlength=nodes)
    own_s = _where_incomplete(own_s, shape, node_of, workers)
    is_hidden = np.zeros(shape.start_s.shape, bool)
    ends_s = shape.end_s
    for rows in issued_together(shape):
        mates, end_s = node_of[rows], ends_s[rows]
        lasts = over_s[mates] >= end_s - _AT_ONCE_S
        for place, row in enumerate(rows):
            is_hidden[row] = (lasts & (ready_s[mates] > ready_s[mates[place]])).any(axis=0)
    # The other side of the transfer was not recorded: most of its time is a wait.
    is_hidden[(workers[node_of] < 2) & is_p2p(shape)] = True
    hidden = np.ones(own_s.shape, bool)
    np.logical_and.at(hidden, node_of, is_hidden)
    for kind, name in enumerate(shape.kinds):
        of_kind = np.unique(node_of[shape.kind == kind]) if p2p(name)[0] else np.array([], np.int64)
        seen = own_s[of_kind][~hidden[of_kind]]
        if len(seen) and hidden[of_kind].any():
            usual_s = np.median(seen)
            own_s[of_kind] = np.where(hidden[of_kind], np.minimum(own_s[of_kind], usual_s), own_s[of_kind])
    return own_s


def _between(shape: StepShape, node_of: Ints, nodes: int) -> tuple[Floats, Floats]:
    """Return when the last worker of each node arrived and when the first left. Missing rows count only if alone."""
    ready_s, over_s = np.full((nodes, len(shape.steps)), -np.inf), np.full((nodes, len(shape.steps)), np.inf)
    np.maximum.at(ready_s, node_of, np.where(shape.was_recorded, shape.start_s, -np.inf))
    np.minimum.at(over_s, node_of, np.where(shape.was_recorded, shape.end_s, np.inf))
    if np.isinf(ready_s).any():
        alone = np.where(np.isinf(ready_s)[node_of], shape.start_s, -np.inf)
        np.maximum.at(ready_s, node_of, alone)
        np.minimum.at(over_s, node_of, np.where(np.isinf(alone), np.inf, shape.end_s))
    return ready_s, over_s


def _where_incomplete(own_s: Floats, shape: StepShape, node_of: Ints, workers: Ints) -> Floats:
    """Use the usual time if a worker's row is missing and the node takes longer than ever: that worker was last."""
    complete = np.ones(own_s.shape, bool)
    np.logical_and.at(complete, node_of, shape.was_recorded)
    partly = np.flatnonzero((workers > 1) & complete.any(axis=1) & ~complete.all(axis=1))
    if len(partly):
        seen_s = np.where(complete[partly], own_s[partly], np.nan)
        usual_s, most_s = (how(seen_s, axis=1, keepdims=True) for how in (np.nanmedian, np.nanmax))
        own_s[partly] = np.where(own_s[partly] > most_s, usual_s, own_s[partly])
    return own_s


def issued_together(shape: StepShape) -> list[list[int]]:
    """Return rows of sends and receives that a worker issued at once: they begin and end together."""
    transfers = np.flatnonzero(is_p2p(shape))
    start_s, end_s = (np.median(times_s[transfers], axis=1) for times_s in (shape.start_s, shape.end_s))
    order = np.lexsort((end_s, start_s, shape.worker[transfers]))
    apart = np.diff(shape.worker[transfers[order]]) != 0
    apart |= (np.diff(start_s[order]) > _SAME_S) | (np.diff(end_s[order]) > _SAME_S)
    together: dict[int, list[int]] = defaultdict(list)
    for row, number in zip(transfers[order].tolist(), np.r_[0, np.cumsum(apart)].tolist(), strict=False):
        together[number].append(row)
    return [rows for rows in together.values() if len(rows) > 1]


def is_p2p(shape: StepShape) -> NDArray[np.bool_]:
    return np.isin(shape.kind, [number for number, kind in enumerate(shape.kinds) if p2p(kind)[0]])
