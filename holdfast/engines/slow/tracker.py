"""A job that gets slow, and fast again: said once, from the iterations of its ranks (GREYHOUND §4.2). Pure.

Training is synchronous: when one rank is slow, all are. So a change is the job's once more than half of the ranks that
are tracked have seen it; a change that one rank alone sees is its clock, or its records.

Iterations are told by agents, from the calls of a rank (`holdfast.engines.slow.period`); one rank of each node does.
The pace of a job is followed for as long as a generation of it lives.
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
"""What was a hundred iterations ago counts for a third of what is now."""
VOTE_LASTS = 50
"""Iterations of a rank until what it saw and most others did not is forgotten."""


class _RankVote(msgspec.Struct, frozen=True):
    change: ChangePoint
    iteration: int
    detected_after: int


class _Series:
    """The iterations of one pattern: numbers of samples are not numbers of iterations, some are missing."""

    def __init__(self, changed_by: float) -> None:
        self.points = ChangePoints(changed_by)
        self.numbers: deque[int] = deque(maxlen=NUMBERS_KEPT)
        self.lately_s = 0.0


class RankPace:
    """The pace of one rank. Training and evaluation are told apart by their patterns; each is compared with itself, and
    the one that takes most of the time is training."""

    def __init__(self, changed_by: float = CHANGED_BY) -> None:
        self._changed_by = changed_by
        self._series: dict[int, _Series] = {}
        self.iterations = 0

    def observe(self, sample: IterationTime) -> _RankVote | None:
        """Take in an iteration. The change of pace that is certain with it."""
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
        if change is None or any(other.lately_s > series.lately_s for other in self._series.values()):
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
        """Whether an onset was said whose relief was not."""
        return self._healthy_s is not None

    @property
    def slow(self) -> tuple[float, float] | None:
        """Its pace since it is slow, and the one before; None: it is not slow."""
        return None if self._healthy_s is None else (self._pace_s, self._healthy_s)

    def observe(self, sample: IterationTime) -> tuple[PaceChange, ...]:
        """Take in an iteration of a rank. What is to be said of the job with it."""
        rank = self._ranks.get(sample.rank)
        if rank is None:
            rank = self._ranks[sample.rank] = RankPace(self._changed_by)
        vote = rank.observe(sample)
        if self._until.get(sample.rank, rank.iterations) < rank.iterations:
            del self._votes[sample.rank], self._until[sample.rank]
        if vote is None:
            return ()
        self._votes[sample.rank] = vote
        self._until[sample.rank] = rank.iterations + VOTE_LASTS
        return self._agreed_change(vote.change.is_slower)

    def _agreed_change(self, is_slower: bool) -> tuple[PaceChange, ...]:
        agree = {rank: vote for rank, vote in self._votes.items() if vote.change.is_slower == is_slower}
        if 2 * len(agree) <= len(self._ranks):
            return ()
        # The rest may still come to see it: fewer than half, who are not heard alone.
        for rank in agree:
            del self._votes[rank], self._until[rank]
        before_s = statistics.median(vote.change.before_s for vote in agree.values())
        after_s = statistics.median(vote.change.after_s for vote in agree.values())
        healthy_s = self._healthy_s if self._healthy_s is not None else min(before_s, after_s)
        is_over = not is_slower and after_s < healthy_s * (1.0 + self._changed_by)
        self._healthy_s, self._pace_s = None if is_over else healthy_s, after_s
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
