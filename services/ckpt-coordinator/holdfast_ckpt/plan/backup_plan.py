"""The placement of backups: a function from a job's topology to the node that keeps each rank's shard.

ByteRobust §6.3: when an aggregation analysis finds the outliers in one parallel group, every machine of that group is
evicted, so a backup inside one of its rank's own groups is lost with it. Therefore the backup of a rank lies on a
machine that shares no parallel group with the rank's machine (Fig. 9).

Ranks fill machines in order, so the machines of a job form a mesh of their own: the dimensions inside a machine vanish,
one may be cut in two, the others stay. Two machines share a group exactly when they differ in at most one of these
dimensions. So the backup goes half-way round every dimension at once: it differs in all of them, and each machine keeps
the backup of exactly one other. One half of the machines goes forwards and the other backwards, so that two machines
keep each other's backups: the loss of two machines is then fatal half as often.

If all machines are in a single group (pure data parallelism, or pure ZeRO), none is outside of it: the backup goes
to the neighbour, as in the paper, and only the disk covers the loss of the whole group.

A rack is lost at once, too. Where nodes report their rack, those whose keeper is in their own rack exchange
keepers with others, as long as no parallel group is shared again.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from itertools import product

import msgspec

from holdfast.topology import Topology

DISTANCES_TRIED_MAX = 64
"""Distances tried if the machines form no mesh."""
EXCHANGES_TRIED_MAX = 256
"""Nodes that one node tries to exchange keepers with."""


class BackupStrategy(StrEnum):
    """Rule for choosing the node that keeps a backup."""

    CROSS_GROUP = "cross-group"  # ByteRobust §6.3: outside of all parallel groups
    RING = "ring"  # TRANSOM §IV-C: on the next node
    PAIRS = "pairs"  # Gemini-style: nodes 0 and 1 keep each other's, 2 and 3, ...


class Protects(StrEnum):
    """The largest loss that always leaves a copy of every shard."""

    NOTHING = "nothing"  # a single node has nowhere to put a copy
    NODE = "node"
    GROUP = "group"  # any parallel group, with every machine that any of its ranks is on


class BackupPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Placement of backups. A rank's is with the same local rank on the keeper: each sends to and receives from one."""

    strategy: BackupStrategy
    topology: Topology
    keeper: tuple[int, ...]
    """For each node rank the node rank that keeps its backups; its own number if none does."""
    protects: Protects
    reason: str

    def backup_node_of(self, rank: int) -> int | None:
        """Return the node rank that keeps the backup of a rank's shard; None if none does."""
        node = self.topology.node_rank_of(rank)
        return None if self.keeper[node] == node else self.keeper[node]

    def peer_of(self, rank: int) -> int | None:
        """Return the rank that a rank sends its shard to; None if there is none."""
        node = self.backup_node_of(rank)
        if node is None:
            return None
        return node * self.topology.ranks_per_node + rank % self.topology.ranks_per_node

    def kept_bytes(self, shard_bytes: Sequence[int]) -> list[int]:
        """Return the bytes of backups on each node, given the size of each rank's shard."""
        per_node = self.topology.ranks_per_node
        kept = [0] * self.topology.nnodes
        for node, keeper in enumerate(self.keeper):
            if keeper != node:
                kept[keeper] += sum(shard_bytes[node * per_node : (node + 1) * per_node])
        return kept

    def is_restorable(self, lost_nodes: frozenset[int]) -> bool:
        """Return True if every shard has a copy left in memory when these nodes are lost at once."""
        return all(self.keeper[node] not in lost_nodes for node in lost_nodes)


def plan_backups(
    topology: Topology, strategy: BackupStrategy = BackupStrategy.CROSS_GROUP, racks: Sequence[str] = ()
) -> BackupPlan:
    """Return the plan for a topology in O(ranks); the same arguments give the same plan. `racks` has the rack of each
    node, "" if unknown; only the strategy cross-group looks at it.
    """
    if topology.nnodes == 1:
        keeper: Sequence[int] = (0,)
        protects, reason = Protects.NOTHING, "the job has one node: no other node can keep a copy"
    elif strategy is BackupStrategy.RING:
        keeper, protects = _ring(topology.nnodes), Protects.NODE
        reason = "each node's backups are on the next one"
    elif strategy is BackupStrategy.PAIRS:
        keeper, protects = _pairs(topology.nnodes), Protects.NODE
        reason = "pairs of nodes keep each other's backups"
    else:
        keeper, protects, reason = _cross_group(topology)
        if len(set(racks) - {""}) > 1:
            keeper, in_own_rack = _across_racks(topology, keeper, protects, racks)
            reason += f"; of {in_own_rack} nodes they are in the same rack" if in_own_rack else ", in another rack"
    return BackupPlan(strategy=strategy, topology=topology, keeper=tuple(keeper), protects=protects, reason=reason)


def machine_mesh(topology: Topology) -> tuple[int, ...] | None:
    """Return the sizes of the mesh that the machines form, outermost first, without those of size 1. None if a
    machine's ranks do not fill whole blocks of the job's mesh (3 ranks a node, tp=2).
    """
    inside = topology.ranks_per_node
    sizes: list[int] = []
    for size in reversed(topology.mesh.sizes):
        if inside % size == 0:
            inside //= size
        elif size % inside == 0:
            sizes.append(size // inside)
            inside = 1
        else:
            return None
    return tuple(size for size in reversed(sizes) if size > 1)


def nodes_of_group(topology: Topology, group: Sequence[int]) -> frozenset[int]:
    """Return the node ranks that are lost when a parallel group is evicted."""
    return frozenset(topology.node_rank_of(rank) for rank in group)


def _ring(nnodes: int) -> list[int]:
    return [(node + 1) % nnodes for node in range(nnodes)]


def _pairs(nnodes: int) -> list[int]:
    keeper = [node ^ 1 for node in range(nnodes)]
    if nnodes % 2:
        # The odd one out goes with the last pair: three in a ring.
        keeper[-3:] = [nnodes - 2, nnodes - 1, nnodes - 3]
    return keeper


def _cross_group(topology: Topology) -> tuple[Sequence[int], Protects, str]:
    sizes = machine_mesh(topology)
    if sizes is None:
        return _outside_by_search(topology)
    if len(sizes) < 2:
        return (
            _pairs(topology.nnodes),
            Protects.NODE,
            f"all nodes share a parallel group of mesh {topology.mesh}: none is outside of it, "
            "so neighbours keep copies",
        )
    pivot = next((dim for dim, size in enumerate(sizes) if size % 2 == 0), None)
    keeper = [_half_way(place, sizes, pivot) for place in product(*(range(size) for size in sizes))]
    return keeper, Protects.GROUP, "each node's backups are on one that shares no parallel group with it"


def _half_way(place: tuple[int, ...], sizes: tuple[int, ...], pivot: int | None) -> int:
    """Return the node opposite of the one at `place`. `pivot` is the dimension that separates the halves."""
    back = pivot is not None and place[pivot] >= sizes[pivot] // 2
    node = 0
    for index, size in zip(place, sizes, strict=True):
        node = node * size + (index + (-(size // 2) if back else size // 2)) % size
    return node


def _outside_by_search(topology: Topology) -> tuple[Sequence[int], Protects, str]:
    """Choose the first distance that is outside of all groups for every node, for machines that form no mesh."""
    nnodes = topology.nnodes
    # The farthest first: neighbours share the innermost groups.
    distances = sorted(range(1, nnodes), key=lambda distance: abs(distance - nnodes // 2))
    for distance in distances[:DISTANCES_TRIED_MAX]:
        if not any(share_group(topology, node, (node + distance) % nnodes) for node in range(nnodes)):
            return (
                [(node + distance) % nnodes for node in range(nnodes)],
                Protects.GROUP,
                f"each node's backups are {distance} nodes further, which shares no parallel group with it",
            )
    return (
        _pairs(nnodes),
        Protects.NODE,
        f"no distance tried keeps backups outside of all parallel groups of mesh {topology.mesh} with "
        f"{topology.ranks_per_node} ranks a node: neighbours keep copies",
    )


def _across_racks(
    topology: Topology, keepers: Sequence[int], protects: Protects, racks: Sequence[str]
) -> tuple[list[int], int]:
    """Return the keepers after exchanges between nodes, and the number of nodes with a keeper in their own rack.

    Two nodes that keep each other's copies stay such a pair: they exchange with another pair.
    """
    keepers, nnodes = list(keepers), len(keepers)

    def is_apart(one: int, other: int) -> bool:
        if one == other or (racks[one] and racks[one] == racks[other]):
            return False
        return protects is not Protects.GROUP or not share_group(topology, one, other)

    def exchanged(node: int, other: int) -> dict[int, int]:
        """Return the keepers that change if these two exchange theirs; {} if they cannot."""
        mine, its = keepers[node], keepers[other]
        changed = {node: its, other: mine}
        if keepers[mine] == node and keepers[its] == other:
            changed = {node: other, other: node, mine: its, its: mine}
        return changed if all(is_apart(*pair) for pair in changed.items()) else {}

    for node in range(nnodes):
        if racks[node] and racks[node] == racks[keepers[node]]:
            others = ((node + nnodes // 2 + distance) % nnodes for distance in range(min(nnodes, EXCHANGES_TRIED_MAX)))
            keepers_of = (exchanged(node, other) for other in others if other not in (node, keepers[node]))
            for changed_node, keeper in next(filter(None, keepers_of), {}).items():
                keepers[changed_node] = keeper
    return keepers, sum(bool(racks[node]) and racks[node] == racks[keepers[node]] for node in range(nnodes))


def share_group(topology: Topology, one: int, other: int) -> bool:
    """Return True if two node ranks have ranks in a common parallel group, or are the same."""
    there = topology.ranks_of(other)
    for dim in topology.mesh.names:
        stride, size = topology.mesh.stride(dim), topology.mesh.size(dim)
        for rank in topology.ranks_of(one):
            first = rank - rank // stride % size * stride
            # The first member of the rank's group that is not before the other node.
            member = max(0, -((first - there.start) // stride))
            if member < size and first + member * stride < there.stop:
                return True
    return False
