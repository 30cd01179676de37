"""Which ranks have state in common, as far as a mesh tells: those that differ in data-parallel dimensions only. Pure.

ByteRobust (§6.3) backs up model states once for each data-parallel group. The work is shared by a few neighbours in it
rather than by all: each of them is asked by the others, at every step, what its chunks hash to.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from holdfast.topology import Mesh

REPLICA_DIMENSIONS = frozenset({"dp", "ddp", "data", "data_parallel", "dp_replicate", "replica", "replicate"})
"""Names under which the field's meshes have replicas. Sharded ones (`dp_shard`, `fsdp`) have nothing in common."""


def replicas_of(mesh: Mesh, rank: int, at_most: int) -> tuple[int, ...]:
    """The ranks that share the sending with this one, itself among them; the same for all of them. O(at_most)."""
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
    """`replicas_of` each rank; () if no rank has any. O(ranks)."""
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
