"""Computes step times with some operations at their ideal duration (what-if analysis). Pure.

After "Understanding Stragglers in Large Model Training Using What-if Analysis": the ideal of a transfer or collective
is the median of its kind, since a few very slow ones should not count; that of any other operation is the mean.
"""

from __future__ import annotations

from math import ceil

import numpy as np
from numpy.typing import NDArray

from holdfast.engines.stragglers.straggler_verdict import WhatIf
from holdfast.engines.stragglers.traces.operations import Floats
from holdfast.engines.stragglers.traces.own_times import p2p
from holdfast.engines.stragglers.traces.step_shape import StepShape
from holdfast.engines.stragglers.what_if.dependencies import StepGraph, is_communication
from holdfast.engines.stragglers.what_if.step_replay import replay

_WORST = 0.03
_WORKERS_MAX = 256
"""Maximum workers replayed one by one; above it, a worker's slowdown is the lesser of its row and column (paper)."""


def what_if(shape: StepShape, graph: StepGraph) -> WhatIf:
    """Return the figures of the paper, means over the steps."""
    ideal = ideal_s(shape, graph)

    def lasts_s(kept: NDArray[np.bool_]) -> float:
        """Return the mean step time with these nodes as recorded and all others ideal."""
        return float(replay(graph, np.where(kept[:, None], graph.own_s, ideal)).mean())

    def with_rows(rows: NDArray[np.bool_]) -> NDArray[np.bool_]:
        kept = np.zeros(len(graph.own_s), bool)
        kept[graph.node_of[rows]] = True
        return kept

    recorded_s = float((shape.end_s.max(axis=0) - shape.start_s.min(axis=0)).mean())
    everything = np.ones(len(graph.own_s), bool)
    replayed_s, best_s = lasts_s(everything), lasts_s(~everything)
    by_dp_rank = [lasts_s(with_rows(shape.dp_rank == one)) / best_s for one in range(shape.dp_size)]
    by_stage = [lasts_s(with_rows(shape.stage == one)) / best_s for one in range(shape.pp_size)]
    by_worker = np.minimum.outer(np.array(by_dp_rank), np.array(by_stage))
    if by_worker.size <= _WORKERS_MAX:
        for dp_rank, stage in np.ndindex(by_worker.shape):
            by_worker[dp_rank, stage] = lasts_s(with_rows(shape.worker == dp_rank * shape.pp_size + stage)) / best_s
    worst = np.argsort(-by_worker.ravel(), kind="stable")[: ceil(_WORST * by_worker.size)]
    lost_s = replayed_s - best_s

    def share_gone(rows: NDArray[np.bool_]) -> float:
        return (replayed_s - lasts_s(~with_rows(rows))) / lost_s if lost_s > 1e-9 * replayed_s else 0.0

    return WhatIf(
        recorded_s=recorded_s,
        replayed_s=replayed_s,
        ideal_s=best_s,
        slowdown=replayed_s / best_s if best_s else 1.0,
        by_kind={
            name: lasts_s(with_rows(np.isin(shape.kind, numbers))) / best_s for name, numbers in _kinds(shape).items()
        },
        by_dp_rank=tuple(by_dp_rank),
        by_stage=tuple(by_stage),
        by_worker=tuple(tuple(row) for row in by_worker.tolist()),
        worst_workers=share_gone(np.isin(shape.worker, worst)),
        last_stage=share_gone(shape.stage == shape.pp_size - 1) if shape.pp_size > 1 else 0.0,
        replay_error=replayed_s / recorded_s - 1 if recorded_s else 0.0,
    )


def ideal_s(shape: StepShape, graph: StepGraph) -> Floats:
    """Return the ideal duration of each node, nodes x 1; 0 if it never took place."""
    kind = shape.kind[graph.first_row]
    ideal = np.zeros((len(kind), 1))
    for one in np.unique(kind[~graph.is_void]):
        own_s = graph.own_s[(kind == one) & ~graph.is_void]
        ideal[(kind == one) & ~graph.is_void] = np.median(own_s) if is_communication(shape.kinds[one]) else own_s.mean()
    return ideal


def _kinds(shape: StepShape) -> dict[str, list[int]]:
    """Group kinds by reported name: sends and receives of one direction are the same transfers."""
    found: dict[str, list[int]] = {}
    for number, kind in enumerate(shape.kinds):
        way, _ = p2p(kind)
        found.setdefault(f"{way}-pp-comm" if way else kind, []).append(number)
    return found
