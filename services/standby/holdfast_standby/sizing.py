"""The size of the warm pool, from the failures of the fleet (ByteRobust §6.2). Pure.

Machines fail independently, each with the same chance within a day; how many do so together is binomial. The pool
holds as many standbys as its 99th percentile.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import datetime, timedelta

from holdfast.settings.pool import PoolPolicy
from holdfast_standby.state import Node, NodeState

WINDOW = timedelta(days=30)
"""Failures that the daily rate is measured over."""

USUAL_PER_DAY = 0.0012
"""Failures of a machine and day before any were seen: with it, the P99 of ByteRobust's Table 5 come out."""
USUAL_MACHINE_DAYS = 1000.0
"""Weight of that rate: the number of observed machine-days at which the fleet's own failures weigh as much."""

DAY = timedelta(days=1)
FAILURES_KEPT_MAX = 30


def after_failure(failures: tuple[datetime, ...], now: datetime) -> tuple[datetime, ...]:
    """Return the days on which a node failed, with this failure. A loss and the eviction that follows are one."""
    recent = tuple(at for at in failures if now - at < WINDOW)
    if recent and now - recent[-1] < DAY:
        return recent
    return (*recent, now)[-FAILURES_KEPT_MAX:]


def failures_per_day(nodes: Iterable[Node], now: datetime) -> float:
    """Return the chance that one machine fails within a day, by the days before this one.

    What fails today needs the pool, and is no evidence yet about other days.
    """
    failures, machine_days = USUAL_PER_DAY * USUAL_MACHINE_DAYS, USUAL_MACHINE_DAYS
    for node in nodes:
        if node.failures:
            failures += sum(DAY <= now - at < WINDOW for at in node.failures)
        machine_days += max(0.0, min(WINDOW, now - (node.known_since or node.since)) / DAY - 1.0)
    return min(1.0, failures / machine_days)


def standbys(machines: int, per_day: float, quantile: float) -> int:
    """Return the fewest standbys that suffice on this share of the days."""
    if machines == 0 or per_day <= 0.0 or quantile <= 0.0:
        return 0
    if per_day >= 1.0:
        return machines
    # In logarithms: the chance that none of 100,000 machines fails is no float.
    log_chance = machines * math.log1p(-per_day)
    total = math.exp(log_chance)
    count = 0
    while total < quantile and count < machines:
        log_chance += math.log((machines - count) / (count + 1)) + math.log(per_day) - math.log1p(-per_day)
        total += math.exp(log_chance)
        count += 1
    return count


def reserve(nodes: Iterable[Node], policy: PoolPolicy, now: datetime) -> int:
    """Return the size of the pool: how many standbys new jobs leave free, for the machines that train now."""
    if policy.size:
        return policy.size
    known = tuple(nodes)
    training = sum(node.state is NodeState.ACTIVE for node in known)
    return standbys(training, failures_per_day(known, now), policy.quantile) if training else 0
