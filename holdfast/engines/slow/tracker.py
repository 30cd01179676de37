"""Onset and relief of a job's slowness, from the iterations of its ranks (GREYHOUND §4.2). Pure.

Training is synchronous: if one rank is slow, all are. So a change is the job's once more than half of the tracked ranks
have measured it; a change on a single rank is due to its clock or its records.

Agents report iterations (`holdfast.engines.slow.period`) of one rank per node. A pace is followed for one generation.
"""

from __future__ import annotations

import statistics
from collections import deque

import msgspec

from holdfast.engines.slow.calls import IterationTime
from holdfast.engines.slow.change_points import CHANGED_BY, ChangePoint, ChangePoints
from holdfast.engines.slow.slow_findings import PaceChange

PATTERNS_MAX = 8
NUMBERS_KEPT = 64
FORGETTING = 0.99
"""Decay per iteration: an iteration a hundred earlier has a third of the weight."""
VOTE_LASTS = 50
"""Iterations of a rank after which its vote without a majority is forgotten."""
AS_BEFORE = 24
"""Iterations of a slow job at its healthy pace after which it is slow no more. A change point shows that sooner, but
not where the slow pace was too short to be known well."""


class _RankVote(msgspec.Struct, frozen=True):
    change: ChangePoint
    iteration: int
    detected_after: int


class _Series:
    """Iterations of one pattern. Numbers of samples differ from those of iterations, since some are missing."""

    def __init__(self, changed_by: float) -> None:
        self.points = ChangePoints(changed_by)
        self.numbers: deque[int] = deque(maxlen=NUMBERS_KEPT)
        self.lately_s = 0.0


class RankPace:
    """The pace of one rank. Training and evaluation differ in their patterns; each is compared with itself, and the
    pattern with most of the time is training."""

    def __init__(self, changed_by: float = CHANGED_BY) -> None:
        self._changed_by = changed_by
        self._series: dict[int, _Series] = {}
        self.iterations = 0
        self.lately: deque[float] = deque(maxlen=AS_BEFORE)
        """Seconds of the last iterations of training since the job's last change."""

    def observe(self, sample: IterationTime) -> _RankVote | None:
        """Add an iteration. Return the change of pace that it makes certain, if any."""
        self.iterations += 1
        series = self._series.get(sample.pattern)
        if series is None:
            if len(self._series) >= PATTERNS_MAX:
                del self._series[min(self._series, key=lambda pattern: self._series[pattern].lately_s)]
            series = self._series[sample.pattern] = _Series(self._changed_by)
        for known in self._series.values():
            known.lately_s *= FORGETTING
        series.lately_s += sample.duration_s
        series.numbers.append(sample.iteration)
        change = series.points.observe(sample.duration_s)
        if any(other.lately_s > series.lately_s for other in self._series.values()):
            return None
        self.lately.append(sample.duration_s)
        if change is None:
            return None
        first = series.numbers[-min(change.detected_after, len(series.numbers))]
        return _RankVote(change, first, sample.iteration - first + 1)


class JobPace:
    """The pace of a job, from the iterations of its ranks in any order."""

    def __init__(self, changed_by: float = CHANGED_BY) -> None:
        self._changed_by = changed_by
        self._ranks: dict[int, RankPace] = {}
        self._votes: dict[int, _RankVote] = {}
        self._until: dict[int, int] = {}
        self._healthy_s: float | None = None
        self._pace_s = 0.0

    @property
    def is_slow(self) -> bool:
        """True between a reported onset and its relief."""
        return self._healthy_s is not None

    @property
    def slow(self) -> tuple[float, float] | None:
        """Present pace and the one before, in seconds; None if the job is not slow."""
        return None if self._healthy_s is None else (self._pace_s, self._healthy_s)

    def observe(self, sample: IterationTime) -> tuple[PaceChange, ...]:
        """Add an iteration of a rank. Return the changes of the job's pace that it makes certain."""
        rank = self._ranks.get(sample.rank)
        if rank is None:
            rank = self._ranks[sample.rank] = RankPace(self._changed_by)
        vote = rank.observe(sample)
        if self._until.get(sample.rank, rank.iterations) < rank.iterations:
            del self._votes[sample.rank], self._until[sample.rank]
        if vote is None:
            return self._as_before(sample)
        self._votes[sample.rank] = vote
        self._until[sample.rank] = rank.iterations + VOTE_LASTS
        return self._agreed_change(vote.change.is_slower)

    def _as_before(self, sample: IterationTime) -> tuple[PaceChange, ...]:
        """Return the relief of a slow job that has made its last iterations at its healthy pace, on most ranks."""
        if self._healthy_s is None or len(self._ranks[sample.rank].lately) < AS_BEFORE:
            return ()
        paces = {rank: statistics.median(it.lately) for rank, it in self._ranks.items() if len(it.lately) == AS_BEFORE}
        well = {rank: pace for rank, pace in paces.items() if pace < self._healthy_s * (1.0 + self._changed_by)}
        if 2 * len(well) <= len(self._ranks):
            return ()
        change = PaceChange(
            direction="relief",
            iteration=max(0, sample.iteration - AS_BEFORE + 1),
            before_s=self._pace_s,
            after_s=statistics.median(well.values()),
            healthy_s=self._healthy_s,
            detected_after=AS_BEFORE,
            ranks=tuple(sorted(well)),
            is_over=True,
        )
        self._healthy_s, self._pace_s = None, change.after_s
        self._votes.clear()
        self._until.clear()
        return (change,)

    def _agreed_change(self, is_slower: bool) -> tuple[PaceChange, ...]:
        agree = {rank: vote for rank, vote in self._votes.items() if vote.change.is_slower == is_slower}
        if 2 * len(agree) <= len(self._ranks):
            return ()
        # Fewer than half are left: they may still see the change, but do not count alone.
        for rank in agree:
            del self._votes[rank], self._until[rank]
        before_s = statistics.median(vote.change.before_s for vote in agree.values())
        after_s = statistics.median(vote.change.after_s for vote in agree.values())
        if not is_slower and self._healthy_s is None and after_s * (1.0 + self._changed_by) > self._pace_s > 0.0:
            # Its relief is known already.
            return ()
        healthy_s = self._healthy_s if self._healthy_s is not None else min(before_s, after_s)
        is_over = not is_slower and after_s < healthy_s * (1.0 + self._changed_by)
        self._healthy_s, self._pace_s = None if is_over else healthy_s, after_s
        for pace in self._ranks.values():
            pace.lately.clear()
        return (
            PaceChange(
                direction="onset" if is_slower else "relief",
                iteration=round(statistics.median(vote.iteration for vote in agree.values())),
                before_s=before_s,
                after_s=after_s,
                healthy_s=healthy_s,
                detected_after=max(vote.detected_after for vote in agree.values()),
                ranks=tuple(sorted(agree)),
                is_over=is_over,
            ),
        )
