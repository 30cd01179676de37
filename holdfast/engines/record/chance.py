"""The probability that a machine has a lasting fault, by its record (docs/record.md has the formulas).

Three explanations compete for the failures of a job: chance, the job itself, which fails on any of its machines alike,
and a machine with a lasting fault, on which most of them happen. The odds of the third are kept against each of the
others, and the lower ones count. A failure on the machine raises both, by the ratio of its likelihoods. A failure on
another machine of the job lowers those against the job only: that others fail as well is no sign of chance.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import NamedTuple

from holdfast.engines.record.history import COMPARED, SORTS, SURE, Mark, MarkKind, NodeRecord
from holdfast.engines.record.node_records import NodeRecords
from holdfast.settings.decisions.record import RecordPolicy

KILL_WEIGHT = 0.5
"""Weight of a kill: people, supervisors and the kernel kill processes, broken devices do not."""
KILLS_BELOW = 0.05
"""Logarithm of the ratio by which the odds that kills lead to stay below those of an eviction."""
SHARE_WEIGHT = 2.0
"""Weight of the expected share of a job's failures, in failures."""
FLOOR_RATIO = 100.0
"""The odds never fall further below the prior than this, so that a fault that begins later is found in time."""


class Elsewhere(NamedTuple):
    """Failures of the job's other machines that nothing explains."""

    failures: tuple[datetime, ...] = ()
    accusations: tuple[datetime, ...] = ()
    """Those in which a rank's own output named hardware: if several machines have them, the job may print it."""

    def until(self, at: datetime) -> Elsewhere:
        """Return what had happened by then."""
        failures, accusations = (tuple(it for it in times if it <= at) for times in self)
        return Elsewhere(failures, accusations)


NOTHING_ELSEWHERE = Elsewhere()


def logit(chance: float) -> float:
    return math.log(chance / (1.0 - chance))


def chance_of(log_odds: float) -> float:
    return 1.0 / (1.0 + math.exp(-log_odds))


def faded(log_odds: float, towards: float, age: timedelta, policy: RecordPolicy) -> float:
    """Return the odds after some time: their distance from `towards` halves with each half-life."""
    return towards + (log_odds - towards) * left_after(age, policy)


def left_after(age: timedelta, policy: RecordPolicy) -> float:
    """Return the share of a distance that is left after some time."""
    return math.exp2(-max(0.0, age / timedelta(days=policy.half_life_days)))


class _Rival:
    """The odds of a lasting fault against one of the two other explanations."""

    def __init__(self, policy: RecordPolicy) -> None:
        self.policy = policy
        self.prior, self.first = logit(policy.prior), logit(policy.after_one)
        self.log_odds = self.prior
        self.lift = self.first
        """Level to which the first failure raises the odds."""

    def fade(self, left: float) -> None:
        self.log_odds = self.prior + (self.log_odds - self.prior) * left
        self.lift = self.first + (self.lift - self.first) * left

    def failed(self, factor: float) -> None:
        self.log_odds = max(self.log_odds + math.log(factor), self.lift)

    def killed(self, factor: float) -> None:
        raised = self.log_odds + KILL_WEIGHT * math.log(factor)
        # That many kills are reason enough to check the machine, and no number of them evicts it.
        self.log_odds = max(self.log_odds, min(raised, logit(self.policy.evict_min) - KILLS_BELOW))

    def proved(self) -> None:
        """Note something that points to the machine by itself."""
        self.log_odds = max(self.log_odds, self.first) + math.log(self.policy.ratio_max)

    def missed(self) -> None:
        self.log_odds += math.log(self.policy.missed_by_checks)

    def released(self) -> None:
        self.log_odds = min(self.log_odds, self.first)


class _Job(_Rival):
    """Against the job, which fails on any of its machines alike: only their comparison tells the two apart.

    The share of the job's failures that a machine with a lasting fault has is `culprit_share`, or less if several have
    one: it is learned from the failures so far (the mean of a beta distribution).
    """

    def __init__(self, policy: RecordPolicy) -> None:
        super().__init__(policy)
        self.floor = self.prior - math.log(FLOOR_RATIO)
        self.here, self.there = SHARE_WEIGHT * policy.culprit_share, SHARE_WEIGHT * (1.0 - policy.culprit_share)

    @property
    def share(self) -> float:
        return min(self.policy.culprit_share, self.here / (self.here + self.there))

    def here_again(self, nodes: int) -> float:
        """Count one more failure on the machine. Return its likelihood if the machine has a lasting fault, divided by
        the likelihood if the job fails on any of `nodes` machines.
        """
        share = self.share
        self.here += 1.0
        return share * nodes + 1.0 - share

    def elsewhere(self) -> None:
        step = math.log(1.0 - self.share)
        self.there += 1.0
        self.log_odds = max(self.floor, self.log_odds + step)
        self.lift = max(self.floor, self.lift + step)


class _Odds:
    """The odds while marks are read in the order of time."""

    def __init__(self, policy: RecordPolicy, is_accused_alone: bool) -> None:
        self.policy = policy
        self.is_accused_alone = is_accused_alone
        self.chance, self.job = _Rival(policy), _Job(policy)
        self.at: datetime | None = None
        self.was_passed = False

    @property
    def log_odds(self) -> float:
        """Return the odds against the stronger of the two."""
        return min(self.chance.log_odds, self.job.log_odds)

    def advance(self, to: datetime) -> None:
        if self.at is not None:
            left = left_after(to - self.at, self.policy)
            self.chance.fade(left)
            self.job.fade(left)
        self.at = to

    def elsewhere(self) -> None:
        self.job.elsewhere()

    def read(self, mark: Mark) -> None:
        if mark.counts:
            self._failed(mark)
            return
        for rival in (self.chance, self.job):
            match mark.kind:
                case MarkKind.CHECKS_FAILED | MarkKind.CONFIRMED:
                    rival.proved()
                # A fault that checks have missed once they will miss again: only the first pass counts.
                case MarkKind.CHECKS_PASSED if not self.was_passed:
                    rival.missed()
                case MarkKind.CLEARED:
                    rival.missed()
                case MarkKind.RELEASED:
                    rival.released()
                case _:
                    pass
        if mark.kind is MarkKind.CHECKS_PASSED:
            self.was_passed = True
        elif mark.kind in (MarkKind.CHECKS_FAILED, MarkKind.CONFIRMED, MarkKind.RELEASED):
            self.was_passed = False

    def _failed(self, mark: Mark) -> None:
        is_printed = mark.kind is MarkKind.HARDWARE and not self.is_accused_alone
        if mark.kind is MarkKind.KILLED:
            self.chance.killed(self.policy.ratio_max)
            # A job of one node cannot be compared, and counts as the smallest that can.
            self.job.killed(self.job.here_again(max(mark.nodes, 2)))
        elif mark.kind in SURE:
            self.chance.proved()
            self.job.proved()
        elif mark.kind in COMPARED or is_printed:
            self.chance.failed(self.policy.ratio_max)
            self.job.failed(self.job.here_again(mark.nodes))
        else:
            self.chance.failed(self.policy.ratio_max)
            self.job.failed(self.policy.ratio_max)


def log_odds(record: NodeRecord, elsewhere: Elsewhere, now: datetime, policy: RecordPolicy) -> float:
    """Return the logarithm of the odds that the machine has a lasting fault."""
    odds = _Odds(policy, is_accused_alone=not elsewhere.accusations)
    others = (*elsewhere.failures, *elsewhere.accusations)
    course: list[tuple[datetime, Mark | None]] = [(mark.at, mark) for mark in record.marks]
    course += [(at, None) for at in others]
    for at, mark in sorted((it for it in course if it[0] <= now), key=lambda it: it[0]):
        odds.advance(at)
        if mark is None:
            odds.elsewhere()
        else:
            odds.read(mark)
    odds.advance(now)
    return odds.log_odds


def present_chance(record: NodeRecord, now: datetime, policy: RecordPolicy) -> float:
    """Return the chance by the odds at the record's last mark."""
    if record.log_odds is None or record.as_of is None:
        return policy.prior
    return chance_of(faded(record.log_odds, logit(policy.prior), now - record.as_of, policy))


def elsewhere(record: NodeRecord, records: NodeRecords) -> Elsewhere:
    """Return the failures of the same sorts on other machines, in the jobs in which this one failed.

    Failures of a machine that was evicted for them, and not cleared, were that machine's.
    """
    jobs = {mark.job for mark in record.marks if mark.counts and mark.job}
    if not jobs:
        return NOTHING_ELSEWHERE
    found = [
        mark
        for other in records.of_jobs(jobs)
        if other.node != record.node
        for mark in _unsettled(other.marks)
        if mark.job in jobs
    ]
    return Elsewhere(
        failures=_times(found, COMPARED & _sorts(record)),
        accusations=_times(found, {MarkKind.HARDWARE}),
    )


def _sorts(record: NodeRecord) -> frozenset[MarkKind]:
    own = {mark.kind for mark in record.marks if mark.counts}
    return frozenset().union(*(sort for sort in SORTS if sort & own))


def _times(marks: Iterable[Mark], kinds: Iterable[MarkKind]) -> tuple[datetime, ...]:
    return tuple(mark.at for mark in marks if mark.counts and mark.kind in kinds)


def _unsettled(marks: tuple[Mark, ...]) -> tuple[Mark, ...]:
    """Return the marks since the last eviction that proved right, or was never tested."""
    settled = 0
    for number, mark in enumerate(marks):
        if mark.kind is MarkKind.EVICTED:
            is_cleared = any(later.kind is MarkKind.CLEARED for later in marks[number:])
            settled = settled if is_cleared else number + 1
    return marks[settled:]
