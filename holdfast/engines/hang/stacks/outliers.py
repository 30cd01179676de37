"""Members that differ from most of their peers (ByteRobust §5.1). Pure.

Peers of a rank are all ranks and, with a mesh, the ranks with the same place in other replicas: in every replica, the
first stage of a pipeline waits elsewhere than the last. A rank like the majority of any set of peers is healthy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from holdfast.topology import Mesh

REPLICAS = frozenset({"dp", "ddp", "fsdp", "hsdp", "data", "replicate", "shard", "dp_replicate", "dp_shard", "rep"})
"""Dimensions along which all ranks do the same work on different data."""

STAGES = frozenset({"pp", "pipe", "pipeline", "stage"})
"""Dimensions along which ranks do consecutive parts of a step."""

PEERS_MIN = 3
"""Minimum number of peers: two have no majority."""

_SIDE_SHARE = 4
"""Without replicas to compare, a group this many times smaller than the largest counts as outliers."""

_SETTLED_SHARE = 2 / 3
"""Minimum share of members in the large groups before the small groups count as outliers."""

Ints: TypeAlias = NDArray[np.int64]
Flags: TypeAlias = NDArray[np.bool_]


class PeerSplit(msgspec.Struct, frozen=True):
    """`like_most`: same stack as a majority of some peers; `alone`: peers were compared, and the stack differs."""

    like_most: tuple[int, ...]
    alone: tuple[int, ...]


def split_by_peers(keys: Sequence[int], ranks: Sequence[int | None], mesh: Mesh | None) -> PeerSplit:
    """Compare members 0, 1, ... by `keys` (stack) and `ranks` (None: unknown). O(members log members)."""
    if not keys:
        return PeerSplit((), ())
    _, place, sizes = np.unique(np.asarray(keys, np.int64), return_inverse=True, return_counts=True)
    if len(sizes) == 1 and len(keys) >= PEERS_MIN:
        return PeerSplit(tuple(range(len(keys))), ())
    number = np.asarray(
        [-1 if rank is None or (mesh and rank >= mesh.world_size) else rank for rank in ranks], np.int64
    )
    like_most, _ = _in_majority(place, np.zeros(len(keys), np.int64))
    compared = np.zeros(len(keys), bool)
    behind = np.zeros(len(keys), bool)
    if mesh is not None:
        for coordinates in _coordinates(number, mesh):
            majority, decided = _in_majority(place, coordinates)
            like_most |= majority
            compared |= decided
        ahead, behind = _whole_replicas(place, number, mesh)
        like_most |= ahead
    small = ~compared & _in_small_groups(place, sizes)
    alone = (compared | behind | small) & ~like_most
    return PeerSplit(tuple(np.flatnonzero(like_most).tolist()), tuple(np.flatnonzero(alone).tolist()))


def _coordinates(number: Ints, mesh: Mesh) -> Iterator[Ints]:
    """Yield ranks' positions in each set of dimensions that may shape their work; -1: outside the mesh."""
    dims = [dim for dim in mesh.names if mesh.size(dim) > 1]
    shaping = [dim for dim in dims if dim not in REPLICAS]
    if len(shaping) == len(dims):
        shaping = [dim for dim in shaping if dim in STAGES]
    stages = tuple(dim for dim in shaping if dim in STAGES)
    sets = [stages] if stages else []
    sets += [(dim,) for dim in shaping if dim not in STAGES]
    sets += [(*stages, dim) for dim in shaping if dim not in STAGES and stages]
    sets += [tuple(shaping)] if len(shaping) > 2 else []
    for chosen in dict.fromkeys(sets):
        yield np.where(number < 0, -1, _index(number, mesh, chosen))


def _index(number: Ints, mesh: Mesh, dims: Sequence[str]) -> Ints:
    index = np.zeros(len(number), np.int64)
    for dim in dims:
        index = index * mesh.size(dim) + number // mesh.stride(dim) % mesh.size(dim)
    return index


def _in_majority(place: Ints, peers: Ints) -> tuple[Flags, Flags]:
    """Return members equal to more than half of their peers, and members whose peers have such a majority."""
    _, group, group_sizes = np.unique(peers, return_inverse=True, return_counts=True)
    _, pair, pair_sizes = np.unique(group * (int(place.max()) + 1) + place, return_inverse=True, return_counts=True)
    mine = (pair_sizes[pair] * 2 > group_sizes[group]) & (group_sizes[group] >= PEERS_MIN) & (peers >= 0)
    decided = np.zeros(len(group_sizes), bool)
    decided[group[mine]] = True
    return mine, decided[group]


def _in_small_groups(place: Ints, sizes: Ints) -> Flags:
    """Return members of groups far smaller than the largest, if the large groups make up most members."""
    top = int(sizes.max())
    is_large = (sizes > 1) & (sizes * _SIDE_SHARE >= top)
    if top < 2 or int(sizes[is_large].sum()) < _SETTLED_SHARE * len(place):
        return np.zeros(len(place), bool)
    return np.asarray(~is_large[place], bool)


def _whole_replicas(place: Ints, number: Ints, mesh: Mesh) -> tuple[Flags, Flags]:
    """Return the replicas that are ahead and behind, if at least half of the replicas are in one place as a whole. A
    replica that has finished its own work waits for the others with all its ranks in the same collective."""
    none = np.zeros(len(place), bool)
    shared = [dim for dim in mesh.names if dim in REPLICAS and mesh.size(dim) > 1]
    if not shared or all(dim in REPLICAS or mesh.size(dim) == 1 for dim in mesh.names):
        return none, none
    known = number >= 0
    _, replica = np.unique(np.where(known, _index(number, mesh, shared), -1), return_inverse=True)
    count = int(replica.max()) + 1
    least, most = np.full(count, place.max() + 1), np.full(count, -1)
    np.minimum.at(least, replica[known], place[known])
    np.maximum.at(most, replica[known], place[known])
    whole = least[least == most]
    if len(whole) * 2 < len(np.unique(replica[known])) or len(np.unique(whole)) != 1:
        return none, none
    ahead = known & (place == whole[0])
    return ahead, known & ~ahead
