"""Groups of ranks that have state in common by the mesh: those that differ in data-parallel dimensions only.

ByteRobust (§6.3) backs up model states once for each data-parallel group. A few neighbours in the group share the work
rather than all of it, because each asks the others for the hashes of their chunks at every step.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from holdfast.topology import Mesh

REPLICA_DIMENSIONS = frozenset({"dp", "ddp", "data", "data_parallel", "dp_replicate", "replica", "replicate"})
"""Common names of dimensions with replicas. Ranks along sharded ones (`dp_shard`, `fsdp`) have nothing in common."""


def replicas_of(mesh: Mesh, rank: int, at_most: int) -> tuple[int, ...]:
    """Return the ranks that share the sending with this one, itself included; the same for all. O(at_most)."""
    dims = [(mesh.stride(name), mesh.size(name)) for name in mesh.names if name in REPLICA_DIMENSIONS]
    place, total, first = 0, 1, rank
    for stride, size in dims:
        index = rank // stride % size
        place, total, first = place * size + index, total * size, first - index * stride
    runs = -(-total // at_most)
    run = place * runs // total
    begin, end = (-(-each * total // runs) for each in (run, run + 1))
    return tuple(_rank_at(other, first, dims) for other in range(begin, end))


@lru_cache(maxsize=16)
def replica_groups(mesh: Mesh, at_most: int) -> Sequence[tuple[int, ...]]:
    """Return `replicas_of` each rank in O(ranks); () if no rank has any."""
    if at_most < 2 or len(replicas_of(mesh, 0, at_most)) < 2:
        return ()
    found: list[tuple[int, ...]] = [()] * mesh.world_size
    for rank in range(mesh.world_size):
        if not found[rank]:
            alike = replicas_of(mesh, rank, at_most)
            for other in alike:
                found[other] = alike
    return found


def _rank_at(place: int, first: int, dims: list[tuple[int, int]]) -> int:
    for stride, size in reversed(dims):
        place, index = divmod(place, size)
        first += index * stride
    return first
