"""The circuit breaker: evidence against too many machines of a job within a short time is probably wrong."""

from __future__ import annotations

from datetime import datetime, timedelta

from holdfast.settings.ladder import LadderPolicy


def counted(evictions: tuple[datetime, ...], now: datetime, policy: LadderPolicy) -> tuple[datetime, ...]:
    window = timedelta(seconds=policy.evictions_window_s)
    return tuple(at for at in evictions if now - at < window)


def evictions_max(nnodes: int, policy: LadderPolicy) -> int:
    return max(policy.evictions_min, int(policy.evictions_share_max * nnodes))


def opens(evictions: tuple[datetime, ...], more: int, nnodes: int, now: datetime, policy: LadderPolicy) -> bool:
    return len(counted(evictions, now, policy)) + more > evictions_max(nnodes, policy)
