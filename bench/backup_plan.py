"""The backup plan: how long it takes for 100,000 ranks, and what it outlives, beside a ring and pairs of neighbours.

    python bench/backup_plan.py            200 random topologies, 2,000 failures each
    python bench/backup_plan.py --quick    20 random topologies

A loss is survived if every shard still has a copy in memory. For each random topology (pp, dp, tp, ranks a machine)
and each strategy: the share of survived losses of two machines drawn at random, of two neighbours (a rack, a power
supply), and of one whole parallel group with all of its machines, which is what an over-eviction takes (ByteRobust §5).
Where all machines are in one group no plan outlives that: such topologies are counted, and have no such loss.

Replicas send what they have in common once (ADR 12): the same losses of two machines are looked at chunk by chunk too,
where all of a shard is common to its replicas. `shared` counts a loss as survived if every lost rank has its seal left
and every chunk of its shard, at its own keeper, at a replica or at that one's keeper: it must be what it is without
sharing. `chunks` asks for the chunks only: what could be had if replicas kept each other's seals.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Sequence

import machine
from report import final_line, median, rounded, table, tell

from holdfast.settings.checkpoint import CheckpointPolicy
from holdfast.topology import Mesh, Topology
from holdfast_ckpt.plan.backup_plan import BackupPlan, BackupStrategy, Protects, nodes_of_group, plan_backups
from holdfast_ckpt.plan.replica_groups import replica_groups

SEED = 1
FAILURES = 2_000
LARGE = (("pp=16,dp=780,tp=8", 8), ("pp=16,dp=6250", 1), ("pp=20,dp=625,tp=8", 4), ("pp=25,dp=500,tp=8", 20))
TIMED_RUNS = 5


def timed() -> list[dict[str, object]]:
    """Planning for about 100,000 ranks, in seconds."""
    found: list[dict[str, object]] = []
    for mesh, ranks_per_node in LARGE:
        topology = Topology(Mesh.parse(mesh), ranks_per_node)
        took: list[float] = []
        for _ in range(TIMED_RUNS):
            began = time.perf_counter()
            plan = plan_backups(topology)
            took.append(time.perf_counter() - began)
        kept = plan.kept_bytes([1] * topology.mesh.world_size)
        found.append(
            {
                "mesh": mesh,
                "ranks_per_node": ranks_per_node,
                "ranks": topology.mesh.world_size,
                "nodes": topology.nnodes,
                "protects": plan.protects.value,
                "max_over_mean_bytes": rounded(max(kept) * len(kept) / sum(kept), 3),
                "median_s": rounded(median(took), 3),
            }
        )
    return found


def random_topology(chance: random.Random) -> Topology:
    while True:
        pp, dp, tp = chance.choice((1, 2, 3, 4, 6, 8)), chance.choice((1, 2, 3, 4, 8, 16)), chance.choice((1, 2, 4, 8))
        mesh = Mesh(("pp", "dp", "tp"), (pp, dp, tp))
        ranks_per_node = chance.choice((1, 2, 4, 8))
        if mesh.world_size % ranks_per_node == 0 and mesh.world_size // ranks_per_node >= 4:
            return Topology(mesh, ranks_per_node)


def survived(plan: BackupPlan, chance: random.Random) -> dict[str, float]:
    """The share of losses of each kind that leave a copy of everything."""
    nnodes = plan.topology.nnodes
    groups = [
        nodes
        for dim in plan.topology.mesh.names
        for group in plan.topology.mesh.groups(dim)
        if 1 < len(nodes := nodes_of_group(plan.topology, group)) < nnodes
    ]
    losses = {
        "one machine": [frozenset({node}) for node in range(nnodes)],
        "two machines": [frozenset(chance.sample(range(nnodes), 2)) for _ in range(FAILURES)],
        "two neighbours": [frozenset({node, (node + 1) % nnodes}) for node in range(nnodes)],
        "a parallel group": groups,
    }
    shares = {
        kind: sum(plan.is_restorable(nodes) for nodes in of_kind) / len(of_kind)
        for kind, of_kind in losses.items()
        if of_kind
    }
    by_chunk = losses["two machines"]
    found = survived_by_chunk(plan, by_chunk)
    whole = sum(map(plan.is_restorable, by_chunk)) / len(by_chunk)
    assert found["two machines, shared"] == whole, f"sharing loses something: {found} instead of {whole}"
    return shares | found


def survived_by_chunk(plan: BackupPlan, losses: list[frozenset[int]]) -> dict[str, float]:
    """The same share where each keeper has of a shard only the chunks that its rank sends, and replicas the rest."""
    topology = plan.topology
    alike = replica_groups(topology.mesh, CheckpointPolicy().replicas_max)
    shared = chunks = 0
    for lost in losses:
        ranks = [rank for node in lost for rank in topology.ranks_of(node)]
        has_seals = all(plan.keeper[node] not in lost for node in lost)
        has_chunks = all(_has_chunks(plan, alike[rank] if alike else (rank,), lost) for rank in ranks)
        shared += has_seals and has_chunks
        chunks += has_chunks
    return {"two machines, shared": shared / len(losses), "two machines, chunks": chunks / len(losses)}


def _has_chunks(plan: BackupPlan, alike: Sequence[int], lost: frozenset[int]) -> bool:
    nodes = {plan.topology.node_rank_of(rank) for rank in alike}
    # Who lives has all of it; else each keeper has what its rank has sent.
    return not nodes <= lost or all(plan.keeper[node] not in lost for node in nodes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="20 random topologies")
    args = parser.parse_args()
    here = machine.describe()
    chance = random.Random(SEED)

    large = timed()
    shares: dict[str, dict[str, list[float]]] = {strategy.value: {} for strategy in BackupStrategy}
    broken = single_group = 0
    count = 20 if args.quick else 200
    for number in range(count):
        topology = random_topology(chance)
        for strategy in BackupStrategy:
            plan = plan_backups(topology, strategy)
            found = survived(plan, chance)
            promised = {Protects.NODE: ("one machine",), Protects.GROUP: ("one machine", "a parallel group")}
            broken += any(found.get(kind, 1.0) < 1.0 for kind in promised.get(plan.protects, ()))
            single_group += strategy is BackupStrategy.CROSS_GROUP and plan.protects is not Protects.GROUP
            for kind, share in found.items():
                shares[strategy.value].setdefault(kind, []).append(share)
        if (number + 1) % 50 == 0:
            tell(f"[{number + 1}/{count}] topologies")
    means = {
        strategy: {kind: rounded(sum(values) / len(values), 4) for kind, values in kinds.items()}
        for strategy, kinds in shares.items()
    }

    print(f"\n{machine.in_words(here)}\n")
    table(tuple(large[0]), [tuple(row.values()) for row in large])
    print(f"\nshare of losses survived, mean of {count} topologies ({single_group} with all machines in one group):")
    kinds = tuple(next(iter(means.values())))
    table(("strategy", *kinds), [(strategy, *(row[kind] for kind in kinds)) for strategy, row in means.items()])
    print(f"\nbroken promises: {broken}\n")
    final_line(
        {
            "bench": "backup_plan",
            "machine": here,
            "large": large,
            "topologies": count,
            "single_group": single_group,
            "survived": means,
            "broken_promises": broken,
        }
    )


if __name__ == "__main__":
    main()
