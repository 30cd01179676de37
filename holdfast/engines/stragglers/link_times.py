"""Transfers between workers: links that are slow compared with links of the same load. Pure."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import numpy as np

from holdfast.engines.stragglers.traces.operations import Floats, Ints
from holdfast.engines.stragglers.traces.own_times import p2p
from holdfast.engines.stragglers.traces.step_shape import StepShape
from holdfast.engines.stragglers.what_if.dependencies import StepGraph

_SLOW = 1.5
_SLOW_ENDS = 4.0
"""Factor for links of the first and last stage, which transfer more (embeddings)."""


class SlowLink(NamedTuple):
    """Workers whose transfers take longer than those of others."""

    workers: tuple[int, ...]
    kinds: tuple[str, ...]
    """Kinds of operations."""
    times: float
    """Their time as a multiple of the usual."""
    usual_s: float
    nodes: Ints
    """Nodes of the graph."""


def usual_transfers(shape: StepShape, graph: StepGraph) -> Floats:
    """Return each node's usual time: of a transfer among its kind, of a collective among its group. Point-to-point
    transfers of a kind have the same size everywhere; collectives of the first and last stage do not."""
    usual_s = np.median(graph.own_s, axis=1)
    for nodes in _links(shape, graph)[0].values():
        usual_s[nodes] = np.median(graph.own_s[nodes])
    kind = shape.kind[graph.first_row]
    for one in np.unique(kind[graph.is_transfer]):
        if p2p(shape.kinds[one])[0]:
            nodes = np.flatnonzero((kind == one) & graph.is_transfer)
            usual_s[nodes] = np.median(graph.own_s[nodes])
    return usual_s


def slow_links(shape: StepShape, graph: StepGraph) -> list[SlowLink]:
    """Return links that are slower than their peers throughout the trace."""
    links, kinds = _links(shape, graph)
    found: dict[tuple[int, ...], list[SlowLink]] = defaultdict(list)
    for kind in sorted(set(kinds.values())):
        mine = {key: np.median(graph.own_s[nodes]) for key, nodes in links.items() if kinds[key] == kind}
        for key, own_s in mine.items():
            others_s = [other_s for other, other_s in mine.items() if other != key]
            usual_s = float(np.median(others_s)) if others_s else own_s
            at_ends = not p2p(kind)[0] and {worker % shape.pp_size for worker in key[1]} & {0, shape.pp_size - 1}
            if own_s > max(usual_s, 1e-9) * (_SLOW_ENDS if at_ends else _SLOW):
                times = float(own_s / max(usual_s, 1e-9))
                found[key[1]].append(SlowLink(key[1], (kind,), times, usual_s, links[key]))
    return [
        SlowLink(
            workers,
            tuple(kind for link in links_of for kind in link.kinds),
            max(link.times for link in links_of),
            max(link.usual_s for link in links_of),
            np.concatenate([link.nodes for link in links_of]),
        )
        for workers, links_of in found.items()
    ]


_Key = tuple[int, tuple[int, ...]]


def _links(shape: StepShape, graph: StepGraph) -> tuple[dict[_Key, Ints], dict[_Key, str]]:
    """Return the graph's nodes by kind of operation and set of workers, and the name of the kind for each such key."""
    members: dict[int, set[int]] = defaultdict(set)
    for row in np.flatnonzero(graph.is_transfer[graph.node_of]).tolist():
        members[int(graph.node_of[row])].add(int(shape.worker[row]))
    kind = shape.kind[graph.first_row]
    nodes: dict[_Key, list[int]] = defaultdict(list)
    for node, workers in members.items():
        nodes[int(kind[node]), tuple(sorted(workers))].append(node)
    return (
        {key: np.array(own) for key, own in nodes.items()},
        {key: shape.kinds[key[0]] for key in nodes},
    )
