"""Racks whose nodes fail more often than chance has it: their power, cooling or switch may be at fault.

Each node that failed within the half-life of the record counts once, by its newest failure. If the racks of its job are
alike, the failure falls on one of them with the probability of that rack's share of the job's nodes. So the number of
nodes that failed in a rack has a known distribution, and the end of it is what chance alone would bring about.

A script may fail on the nodes of one rack too, if these have the same place in its mesh. So a rack is only avoided
where others are free, and its nodes are held to nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import NamedTuple

from holdfast.engines.record.history import Mark, NodeRecord
from holdfast.settings.decisions.record import RecordPolicy

FAILED_MIN = 3
"""Minimum number of nodes of a rack: two may fail by chance in one of very many racks."""


class RackFinding(NamedTuple):
    """A rack whose nodes fail more often than chance explains."""

    rack: str
    failed: int
    """Number of its nodes that failed."""
    expected: float
    """Number of failed nodes expected if the rack were like any other."""
    chance: float
    """Probability that by chance alone at least `failed` nodes of some rack fail."""

    def in_words(self, policy: RecordPolicy) -> str:
        return (
            f"{self.failed} nodes of rack {self.rack} have failed within {policy.half_life_days:g} days, "
            f"where {self.expected:.2g} were to be expected (by chance in {self.chance:.1%} of cases)"
        )


def suspect_racks(records: Iterable[NodeRecord], now: datetime, policy: RecordPolicy) -> tuple[RackFinding, ...]:
    """Return the racks whose nodes fail more often than chance has it, the least probable first."""
    newest = list(filter(None, (_newest(record, now - timedelta(days=policy.half_life_days)) for record in records)))
    failed_in = Counter(mark.rack for mark in newest)
    failed_of = Counter(mark.job for mark in newest)
    shares: dict[str, dict[str, float]] = defaultdict(dict)
    for mark in newest:
        shares[mark.rack][mark.job] = mark.rack_nodes / mark.nodes
    found = (
        _finding(rack, failed, [(share, failed_of[job]) for job, share in shares[rack].items()])
        for rack, failed in failed_in.items()
        if failed >= FAILED_MIN
    )
    return tuple(sorted((it for it in found if it.chance < policy.rack_chance_max), key=lambda it: it[::-1]))


def _newest(record: NodeRecord, since: datetime) -> Mark | None:
    """Return the node's newest failure that counts and has a rack; None if that is too old."""
    failures = (it for it in reversed(record.marks) if it.counts and it.rack and it.at > since)
    return next((it for it in failures if 0 < it.rack_nodes <= it.nodes), None)


def _finding(rack: str, failed: int, jobs: list[tuple[float, int]]) -> RackFinding:
    """Return the finding about a rack by its share of each job and the number of nodes that failed in that job."""
    expected = sum(share * count for share, count in jobs)
    racks = sum(count for _, count in jobs) / expected
    by_chance = _at_least(failed, [share for share, count in jobs for _ in range(count)])
    # Each rack is looked at, and one in a thousand of them is improbable to that degree.
    return RackFinding(rack, failed, expected, min(1.0, by_chance * max(1.0, racks)))


def _at_least(number: int, shares: list[float]) -> float:
    """Return the probability that `number` or more of independent events happen, of which each has its probability."""
    exactly = [1.0] + [0.0] * (number - 1)
    for share in shares:
        for happened in range(number - 1, 0, -1):
            exactly[happened] += (exactly[happened - 1] - exactly[happened]) * share
        exactly[0] *= 1.0 - share
    return max(0.0, 1.0 - sum(exactly))
