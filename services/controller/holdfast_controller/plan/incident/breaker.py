"""The circuit breaker: evidence that blames machines of a job too often within a short time is probably wrong.

It counts judgements: a group of nodes that is evicted together was one.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from holdfast.settings.decisions.ladder import LadderPolicy

SMALL_JOB_MAX = 2
"""Judgements that a job of any size can have: one may be wrong."""


def counted(evictions: tuple[datetime, ...], now: datetime, policy: LadderPolicy) -> tuple[datetime, ...]:
    window = timedelta(seconds=policy.evictions_window_s)
    return tuple(at for at in evictions if now - at < window)


def judgements(nodes: Sequence[str], now: datetime) -> tuple[datetime, ...]:
    """Return the judgements that an eviction counts as: one, however many nodes it is of."""
    return (now,)


def evictions_max(nnodes: int, policy: LadderPolicy) -> int:
    """Return the number of judgements that are allowed."""
    return max(least(nnodes, policy), int(policy.evictions_share_max * nnodes))


def least(nnodes: int, policy: LadderPolicy) -> int:
    """Return the number that is allowed in any case; a small job may not lose all of its nodes to them."""
    return min(policy.evictions_min, max(SMALL_JOB_MAX, nnodes - 1))


def opens(evictions: tuple[datetime, ...], nnodes: int, now: datetime, policy: LadderPolicy) -> bool:
    """Return True if one more judgement is one too many."""
    return len(counted(evictions, now, policy)) >= evictions_max(nnodes, policy)
