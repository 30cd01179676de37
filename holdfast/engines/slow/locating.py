"""Suspect groups and ranks of a slow job, from comparisons of like with like (GREYHOUND §4.3). Pure.

A slow link makes transfers of its groups longer than those of groups of the same kind with as much data. A slow rank
works longer than ranks of the same pipeline stage; all others only wait longer, and waiting is not counted. `imbalance`
separates naturally uneven work, no machine's fault. Suspects are not yet culprits: `validation` tests them.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from holdfast.engines.slow.imbalance import StageWork, sequence_imbalance, slower_stages
from holdfast.engines.slow.slow_findings import GroupTime, RankWork, SlowSuspects, Suspicion
from holdfast.topology import Topology

SLOWER_BY = 0.10  # GREYHOUND §4.3: over the median
SHARE_MIN = 0.05
"""Minimum share of the time that groups of a kind spend in collectives: less is noisy and makes no job slow."""
LATE_BY = 0.10
"""Share of a collective's time that the others wait for the last rank, from which it is late."""


def find_slow_suspects(
    groups: Sequence[GroupTime], works: Sequence[RankWork], topology: Topology, slower_by: float = SLOWER_BY
) -> SlowSuspects:
    """Return the suspects; if no comparison shows any, all ranks and groups."""
    stages = StageWork(topology.mesh, works)
    slow_groups = _slow_groups(groups, topology, slower_by)
    slow_ranks = _slow_ranks(stages, slower_by) if works else _late_ranks(groups)
    slowed, harmless = slower_stages(stages, topology, slower_by)
    known = {rank for found in slow_ranks for rank in found.ranks}
    slow_ranks += tuple(found for found in slowed if known.isdisjoint(found.ranks))
    if not slow_ranks:
        harmless += sequence_imbalance(stages, slower_by)
    suspicions = (*slow_ranks, *slow_groups)
    if suspicions:
        return SlowSuspects(
            suspicions=suspicions, harmless=harmless, reason="; ".join(found.reason for found in suspicions)
        )
    if harmless:
        reason = "; ".join(found.reason for found in harmless)
        return SlowSuspects(harmless=harmless, reason=f"{reason}; no machine is at fault")
    everyone = _everyone(groups, topology)
    return SlowSuspects(suspicions=everyone, reason="no group or rank differs from its peers")


def _slow_groups(groups: Sequence[GroupTime], topology: Topology, slower_by: float) -> tuple[Suspicion, ...]:
    in_kind: dict[str, float] = {}
    alike: dict[tuple[object, ...], list[GroupTime]] = {}
    for group in groups:
        nodes = len({topology.node_rank_of(rank) for rank in group.ranks})
        alike.setdefault((group.kind, group.operation, group.bytes, len(group.ranks), nodes), []).append(group)
        in_kind[group.kind] = in_kind.get(group.kind, 0.0) + group.transfer_s * group.occurrences
    worst: dict[str, Suspicion] = {}
    for cluster in alike.values():
        took = sum(group.transfer_s * group.occurrences for group in cluster)
        if took < SHARE_MIN * in_kind[cluster[0].kind]:
            continue
        usual_s = statistics.median_low([group.transfer_s for group in cluster])
        for group in cluster:
            reference_s, compared_with = (
                (usual_s, "the median of its peers") if len(cluster) > 1 else (group.healthy_s, "before")
            )
            ratio = group.transfer_s / reference_s if reference_s > 0 else 0.0
            if ratio > 1.0 + slower_by and (group.group not in worst or ratio > worst[group.group].ratio):
                worst[group.group] = Suspicion(
                    cause="communication",
                    ranks=group.ranks,
                    group=group.group,
                    kind=group.kind,
                    ratio=ratio,
                    reason=f"{group.operation} of group {group.group} takes {group.transfer_s:.3g} s, {ratio:.2f} "
                    f"times {compared_with} ({reference_s:.3g} s)",
                )
    return tuple(sorted(worst.values(), key=lambda found: -found.ratio))


def _slow_ranks(stages: StageWork, slower_by: float) -> tuple[Suspicion, ...]:
    found = [
        Suspicion(
            cause="computation",
            ranks=(rank,),
            ratio=ratio,
            reason=f"rank {rank} works {stages.work_s[rank]:.3g} s an iteration, {ratio:.2f} times {compared_with}",
        )
        for rank, (ratio, compared_with) in stages.ratios().items()
        if ratio > 1.0 + slower_by
    ]
    return tuple(sorted(found, key=lambda suspicion: -suspicion.ratio))


def _late_ranks(groups: Sequence[GroupTime]) -> tuple[Suspicion, ...]:
    """Without times of work: return ranks that others wait for and that wait for no rank in any of their groups."""
    waits: set[int] = set()
    awaited: dict[int, float] = {}
    for group in groups:
        if len(group.waiting_s) < 2:
            continue
        late_s = LATE_BY * (group.transfer_s + max(group.waiting_s))
        if max(group.waiting_s) <= late_s:
            continue
        for rank, waiting_s in zip(group.ranks, group.waiting_s, strict=True):
            if waiting_s > late_s:
                waits.add(rank)
            else:
                others_s = statistics.median(group.waiting_s)
                awaited[rank] = max(awaited.get(rank, 0.0), 1.0 + others_s / max(group.transfer_s, 1e-9))
    return tuple(
        Suspicion(
            cause="computation",
            ranks=(rank,),
            ratio=ratio,
            reason=f"rank {rank} is the last in the collectives of all its groups, and others wait for it",
        )
        for rank, ratio in sorted(awaited.items(), key=lambda item: -item[1])
        if rank not in waits
    )


def _everyone(groups: Sequence[GroupTime], topology: Topology) -> tuple[Suspicion, ...]:
    world = tuple(range(topology.mesh.world_size))
    lone = {group.group: group for group in groups if len(group.ranks) > 1}
    return (
        Suspicion(cause="computation", ranks=world, ratio=1.0, reason="no rank differs from its peers"),
        *(
            Suspicion(
                cause="communication",
                ranks=group.ranks,
                group=group.group,
                kind=group.kind,
                ratio=1.0,
                reason=f"group {group.group} does not differ from its peers, or has none",
            )
            for group in lone.values()
        ),
    )
