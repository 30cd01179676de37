"""The probability that a machine has a lasting fault, by its record (docs/record.md has the formulas).

Three explanations compete for the failures of a job: chance, the job itself, which fails on any of its machines alike,
and a machine with a lasting fault, on which most of them happen. A failure on the machine raises the odds of the third
explanation by the ratio of its likelihood to that of the second; a failure on another machine of the job lowers them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import NamedTuple

from holdfast.engines.record.history import COMPARED, SORTS, Mark, MarkKind, NodeRecord
from holdfast.engines.record.records import NodeRecords
from holdfast.settings.record import RecordPolicy

KILL_WEIGHT = 0.5
"""Weight of a kill: people, supervisors and the kernel kill processes, broken devices do not."""
KILLS_BELOW = 0.05
"""Logarithm of the ratio by which the odds that kills lead to stay below those of an eviction."""
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


def ratio(nodes: int, policy: RecordPolicy) -> float:
    """Return the likelihood of a failure on one of `nodes` machines if that has a lasting fault, divided by the
    likelihood if the job fails on any of them."""
    share = policy.culprit_share
    return min(policy.ratio_max, share * nodes + 1.0 - share)


def faded(log_odds: float, towards: float, age: timedelta, policy: RecordPolicy) -> float:
    """Return the odds after some time: their distance from `towards` halves with each half-life."""
    half_lives = max(0.0, age / timedelta(days=policy.half_life_days))
    return towards + (log_odds - towards) * math.exp2(-half_lives)


class _Odds:
    """The odds while marks are read in the order of time."""

    def __init__(self, policy: RecordPolicy, is_accused_alone: bool) -> None:
        self.policy = policy
        self.is_accused_alone = is_accused_alone
        self.prior, self.first = logit(policy.prior), logit(policy.after_one)
        self.floor = self.prior - math.log(FLOOR_RATIO)
        self.log_odds = self.prior
        self.lift = self.first
        """Level to which the first failure raises the odds."""
        self.at: datetime | None = None
        self.was_passed = False

    def advance(self, to: datetime) -> None:
        if self.at is not None:
            self.log_odds = faded(self.log_odds, self.prior, to - self.at, self.policy)
            self.lift = faded(self.lift, self.first, to - self.at, self.policy)
        self.at = to

    def elsewhere(self) -> None:
        step = math.log(1.0 - self.policy.culprit_share)
        self.log_odds = max(self.floor, self.log_odds + step)
        self.lift = max(self.floor, self.lift + step)

    def read(self, mark: Mark) -> None:
        policy = self.policy
        missed = math.log(policy.missed_by_checks)
        match mark.kind:
            case MarkKind.KILLED if mark.counts:
                # A job of one node cannot be compared, and counts as the smallest that can.
                raised = self.log_odds + KILL_WEIGHT * math.log(ratio(max(mark.nodes, 2), policy))
                # That many kills are reason enough to check the machine, and no number of them evicts it.
                self.log_odds = max(self.log_odds, min(raised, logit(policy.evict_min) - KILLS_BELOW))
            case _ if mark.counts:
                is_printed = mark.kind is MarkKind.HARDWARE and not self.is_accused_alone
                is_compared = mark.kind in COMPARED or is_printed
                factor = ratio(mark.nodes, policy) if is_compared else policy.ratio_max
                self.log_odds = max(self.log_odds + math.log(factor), self.lift)
            case MarkKind.CHECKS_FAILED | MarkKind.CONFIRMED:
                self.log_odds = max(self.log_odds, self.first) + math.log(policy.ratio_max)
                self.was_passed = False
            case MarkKind.CHECKS_PASSED if not self.was_passed:
                # A fault that checks have missed once they will miss again: only the first pass counts.
                self.log_odds += missed
                self.was_passed = True
            case MarkKind.CLEARED:
                self.log_odds += missed
            case MarkKind.RELEASED:
                self.log_odds = min(self.log_odds, self.first)
                self.was_passed = False
            case _:
                pass


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
