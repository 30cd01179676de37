"""Random shapes of jobs: meshes, how many ranks a node has, and what of it may be lost at once."""

from __future__ import annotations

import random

from holdfast.topology import Mesh, Topology
from holdfast_ckpt.plan.backup_plan import nodes_of_group

NODES_MAX = 40
RANKS_MAX = 64


def random_topology(chance: random.Random) -> Topology:
    """A job of 2 to 40 nodes, whose machines form a mesh or do not."""
    while True:
        sizes = {
            "pp": chance.choice((1, 1, 2, 3, 4, 5)),
            "dp": chance.choice((1, 2, 2, 3, 4, 8, 10)),
            "ep": chance.choice((1, 1, 1, 2)),
            "tp": chance.choice((1, 1, 2, 4)),
        }
        order = list(sizes)
        if chance.random() < 0.2:
            chance.shuffle(order)
        mesh = Mesh(tuple(order), tuple(sizes[name] for name in order))
        ranks_per_node = chance.choice((1, 1, 2, 3, 4, 6, 8))
        if mesh.world_size > RANKS_MAX or mesh.world_size % ranks_per_node:
            continue
        # Large ones take long, and small ones have the corners.
        nnodes_max = NODES_MAX if chance.random() < 0.15 else 12
        if 2 <= mesh.world_size // ranks_per_node <= nnodes_max:
            return Topology(mesh, ranks_per_node)


def groups_of(topology: Topology) -> list[frozenset[int]]:
    """The node ranks of each parallel group, but for those that have all nodes."""
    groups = {nodes_of_group(topology, group) for dim in topology.mesh.names for group in topology.mesh.groups(dim)}
    return sorted((group for group in groups if len(group) < topology.nnodes), key=sorted)
