"""Step times without one cause of slowness or another. Pure."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from holdfast.engines.stragglers.compute_times import PassFactors, PassTimes
from holdfast.engines.stragglers.link_times import SlowLink
from holdfast.engines.stragglers.traces.operations import Floats
from holdfast.engines.stragglers.traces.step_shape import StepShape
from holdfast.engines.stragglers.what_if.dependencies import StepGraph
from holdfast.engines.stragglers.what_if.step_replay import replay

PAUSE_KIND = "gc"

CAUSES = (
    "machine",
    "link",
    "communication",
    "stage_imbalance",
    "sequence_length_imbalance",
    "pauses",
    "variation",
)
"""Causes that can be removed. `variation`: all remaining deviations of passes and other operations."""


class AnalyzedStep(NamedTuple):
    """A step with the evidence on its duration. `usual_s`: each node's usual time."""

    shape: StepShape
    graph: StepGraph
    passes: PassTimes
    parts: PassFactors
    links: list[SlowLink]
    usual_s: Floats


def lasts_without_s(step: AnalyzedStep, gone: frozenset[str]) -> float:
    """Return the mean step time in seconds if these causes (of `CAUSES`) were gone."""
    return float(replay(step.graph, _own_s(step, gone)).mean())


def _own_s(step: AnalyzedStep, gone: frozenset[str]) -> Floats:
    shape, graph = step.shape, step.graph
    own_s = graph.own_s.copy()
    alone = ~graph.is_transfer
    row = graph.first_row
    if "communication" in gone:
        own_s[graph.is_transfer] = step.usual_s[graph.is_transfer, None]
    for link in step.links:
        own_s[link.nodes] = link.usual_s if "link" in gone else graph.own_s[link.nodes]
    if "pauses" in gone and PAUSE_KIND in shape.kinds:
        own_s[alone & (shape.kind[row] == shape.kinds.index(PAUSE_KIND))] = 0.0
    other = alone & ~shape.is_compute[row]
    if "variation" in gone:
        own_s[other] = step.usual_s[other, None]
    if "machine" in gone:
        for span in step.parts.spans:
            nodes = np.flatnonzero(other & (shape.stage[row] == span.stage) & (shape.dp_rank[row] == span.dp_rank))
            peers = {kind: _usual_of_peers(step, other, kind, span.stage) for kind in set(shape.kind[row[nodes]])}
            for node in nodes:
                own_s[node, span.first : span.last + 1] = peers[shape.kind[row[node]]]
    own_s[graph.node_of[step.passes.rows]] = step.passes.of_rows(_passes_s(step.parts, gone))
    return own_s


def _usual_of_peers(step: AnalyzedStep, other: NDArray[np.bool_], kind: int, stage: int) -> float:
    row = step.graph.first_row
    return float(np.median(step.usual_s[other & (step.shape.kind[row] == kind) & (step.shape.stage[row] == stage)]))


def _passes_s(parts: PassFactors, gone: frozenset[str]) -> Floats:
    rest = np.where(parts.is_pause, parts.rest, 1.0) if "variation" in gone else parts.rest
    if "pauses" in gone:
        rest = np.where(parts.is_pause, 1.0, rest)
    found = (parts.balanced_s if "stage_imbalance" in gone else parts.usual_s) * rest
    if "machine" not in gone:
        found = found * parts.worker
    if "sequence_length_imbalance" not in gone:
        found = found * parts.content
    return found
