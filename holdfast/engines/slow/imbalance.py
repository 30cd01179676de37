"""Uneven work without a machine at fault: stages of a pipeline, lengths of sequences. Pure.

A stage with more layers has more to do: all its ranks, in every replica, from the start. A batch with longer sequences
has more to do: the slowest replica differs from step to step.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence

from holdfast.engines.slow.slow_findings import RankWork, Suspicion
from holdfast.topology import Mesh, Topology

STAGE_DIMENSION = "pp"
UNEVEN_SHARE = 0.5
"""Minimum share of uneven steps, and maximum share of these in which one rank may be the slowest."""
STEPS_MIN = 4


class StageWork:
    """Work of ranks by pipeline stage; ranks of one stage have the same work."""

    def __init__(self, mesh: Mesh, works: Sequence[RankWork]) -> None:
        self.works = {work.rank: work for work in works if work.work_s}
        self.work_s = {rank: statistics.median(work.work_s) for rank, work in self.works.items()}
        self.stage_of: dict[int, int] = {}
        self.ranks: dict[int, list[int]] = {}
        has_stages = STAGE_DIMENSION in mesh.names
        for rank in sorted(self.works):
            stage = mesh.coordinates(rank)[STAGE_DIMENSION] if has_stages else 0
            self.stage_of[rank] = stage
            self.ranks.setdefault(stage, []).append(rank)
        self.stage_s = {
            stage: statistics.median_low([self.work_s[rank] for rank in ranks]) for stage, ranks in self.ranks.items()
        }

    def ratios(self) -> dict[int, tuple[float, str]]:
        """Return each rank's work over its stage's (its own before if it is alone), and that reference in words."""
        found: dict[int, tuple[float, str]] = {}
        for rank, work_s in self.work_s.items():
            stage = self.stage_of[rank]
            if len(self.ranks[stage]) > 1:
                usual_s = self.stage_s[stage]
                compared_with = f"the median of stage {stage} ({usual_s:.3g} s)"
            else:
                usual_s = self.works[rank].healthy_s
                compared_with = f"before ({usual_s:.3g} s)"
            found[rank] = (work_s / usual_s if usual_s > 0 else 1.0, compared_with)
        return found

    def healthy_s(self, stage: int) -> float:
        """Return the stage's work before the job became slow; 0: unknown."""
        known = [self.works[rank].healthy_s for rank in self.ranks[stage] if self.works[rank].healthy_s > 0]
        return statistics.median_low(known) if known else 0.0


def slower_stages(
    stages: StageWork, topology: Topology, slower_by: float
) -> tuple[tuple[Suspicion, ...], tuple[Suspicion, ...]]:
    """Return stages whose ranks all work longer than other stages: those that became slower, and those with more work.
    Without earlier times, a stage on several nodes has more work: machines do not become slow together."""
    if len(stages.stage_s) < 2:
        return (), ()
    usual_s = statistics.median_low(list(stages.stage_s.values()))
    before_s = {stage: stages.healthy_s(stage) for stage in stages.stage_s}
    usual_before_s = statistics.median_low(list(before_s.values()))
    slowed: list[Suspicion] = []
    uneven: list[Suspicion] = []
    for stage, stage_s in stages.stage_s.items():
        ranks = tuple(stages.ranks[stage])
        if usual_s <= 0 or stage_s <= (1.0 + slower_by) * usual_s:
            continue
        if any(stages.work_s[rank] > (1.0 + slower_by) * stage_s for rank in ranks):
            continue
        ratio = stage_s / usual_s
        words = f"stage {stage} works {ratio:.2f} times as long as the others"
        if usual_before_s > 0 and before_s[stage] > 0:
            was_so = before_s[stage] / usual_before_s > ratio / (1.0 + slower_by)
            since = "as it did before the job got slow" if was_so else "and did not before the job got slow"
        else:
            was_so = len({topology.node_rank_of(rank) for rank in ranks}) > 1
            since = "on all of its nodes" if was_so else "on one node"
        if was_so:
            reason = f"{words}, {since}: its layers take longer"
            uneven.append(
                Suspicion(cause="stage_imbalance", ranks=ranks, kind=STAGE_DIMENSION, ratio=ratio, reason=reason)
            )
        elif len(ranks) > 1:
            slowed += [
                Suspicion(cause="computation", ranks=(rank,), ratio=ratio, reason=f"{words}, {since}") for rank in ranks
            ]
    return tuple(slowed), tuple(uneven)


def sequence_imbalance(stages: StageWork, slower_by: float) -> tuple[Suspicion, ...]:
    """Return a suspicion if in most steps some rank works longer than its stage, a different one each time."""
    steps = min((len(work.work_s) for work in stages.works.values()), default=0)
    slowest: list[tuple[int, float]] = []
    for back in range(1, steps + 1):
        found = (0, 0.0)
        for alike in stages.ranks.values():
            if len(alike) < 2:
                continue
            work_s = {rank: stages.works[rank].work_s[-back] for rank in alike}
            usual_s = statistics.median_low(list(work_s.values()))
            rank = max(alike, key=work_s.__getitem__)
            if usual_s > 0 and work_s[rank] / usual_s > found[1]:
                found = (rank, work_s[rank] / usual_s)
        if found[1] > 1.0 + slower_by:
            slowest.append(found)
    if steps < STEPS_MIN or len(slowest) < UNEVEN_SHARE * steps:
        return ()
    ((_, most),) = Counter(rank for rank, _ in slowest).most_common(1)
    if most > UNEVEN_SHARE * len(slowest):
        return ()
    ranks = tuple(sorted({rank for rank, _ in slowest}))
    ratio = statistics.median(ratio for _, ratio in slowest)
    reason = (
        f"in {len(slowest)} of {steps} steps one rank works {ratio:.2f} times as long as its peers, a different one "
        f"each time ({len(ranks)} so far): sequences of different lengths"
    )
    return (Suspicion(cause="sequence_imbalance", ranks=ranks, ratio=ratio, reason=reason),)
