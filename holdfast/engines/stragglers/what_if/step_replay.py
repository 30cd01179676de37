"""Replay of a step with other durations. Pure."""

from __future__ import annotations

import numpy as np

from holdfast.engines.stragglers.traces.operations import Floats
from holdfast.engines.stragglers.what_if.dependencies import StepGraph


def replay(graph: StepGraph, own_s: Floats) -> Floats:
    """Return the duration of each step for the nodes' own times (nodes x steps)."""
    end_s = np.empty_like(own_s)
    for level in graph.levels:
        if len(level.before):
            begin_s = np.maximum.reduceat(end_s[level.before], level.begins, axis=0)
            end_s[level.nodes] = begin_s + own_s[level.nodes]
        else:
            end_s[level.nodes] = own_s[level.nodes]
    return np.asarray(end_s.max(axis=0))
