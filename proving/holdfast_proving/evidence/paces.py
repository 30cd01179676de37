"""Times of a training's iterations, rank by rank: everyone works, then waits in its groups for the last one.

A slow machine works longer; a machine with a slow link makes the transfers of its groups longer. Nothing but that is
put in: how long each rank waits for which, and the pace of the whole, follow.
"""

from __future__ import annotations

import msgspec

from holdfast.topology import Mesh

TRANSFER_SHARE = 0.2
"""Share of a healthy step that transfers take, in all dimensions of the mesh together."""


class Slowness(msgspec.Struct, frozen=True):
    """Which nodes of a run, by node rank, make it how much slower, and whether their links do."""

    factors: dict[int, float]
    by_links: frozenset[int] = frozenset()


class Iterations(msgspec.Struct, frozen=True):
    """Seconds of each iteration of each rank, and its wait in the collective of each dimension of the mesh."""

    seconds: list[list[float]]
    waits: dict[str, list[list[float]]]


def iterate(mesh: Mesh, ranks_per_node: int, step_s: float, slow: Slowness, count: int) -> Iterations:
    """Return `count` iterations by rank; a healthy one takes `step_s`."""
    dims = [dim for dim in mesh.names if mesh.size(dim) > 1]
    world = range(mesh.world_size)
    usual_s = TRANSFER_SHARE * step_s / max(1, len(dims))
    works_s = [work_s(rank // ranks_per_node, step_s, usual_s * len(dims), slow) for rank in world]
    crossing = [dim for dim in dims if any(_spans(group, ranks_per_node) for group in mesh.groups(dim))]
    clock_s = [0.0] * len(world)
    seconds: list[list[float]] = [[] for _ in world]
    waits: dict[str, list[list[float]]] = {dim: [[] for _ in world] for dim in dims}
    for _ in range(count):
        began_s = list(clock_s)
        clock_s = [at_s + took_s for at_s, took_s in zip(clock_s, works_s, strict=True)]
        for dim in dims:
            for group in mesh.groups(dim):
                extra_s = _extra_s(group, ranks_per_node, step_s, slow) / len(crossing) if dim in crossing else 0.0
                end_s = max(clock_s[rank] for rank in group) + usual_s + extra_s
                for rank in group:
                    waits[dim][rank].append(end_s - clock_s[rank])
                    clock_s[rank] = end_s
        for rank in world:
            seconds[rank].append(clock_s[rank] - began_s[rank])
    return Iterations(seconds, waits)


def link_factor(node_rank: int, slow: Slowness) -> float:
    """Return how much longer transfers of this node take than healthy ones."""
    if node_rank not in slow.by_links:
        return 1.0
    return 1.0 + (slow.factors[node_rank] - 1.0) / TRANSFER_SHARE


def work_s(node_rank: int, step_s: float, transfers_s: float, slow: Slowness) -> float:
    """Return the time that a node computes in a step before it meets others."""
    factor = 1.0 if node_rank in slow.by_links else slow.factors.get(node_rank, 1.0)
    return factor * step_s - transfers_s


def _extra_s(group: range, ranks_per_node: int, step_s: float, slow: Slowness) -> float:
    """Return what slow links add to the transfers of a group, over all dimensions together."""
    if not _spans(group, ranks_per_node):
        return 0.0
    nodes = {rank // ranks_per_node for rank in group}
    return max((slow.factors[node] - 1.0 for node in nodes & slow.by_links), default=0.0) * step_s


def _spans(group: range, ranks_per_node: int) -> bool:
    return group[0] // ranks_per_node != group[-1] // ranks_per_node
