"""The time when a new model of healthy telemetry is due. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from holdfast.settings.findings.telemetry import TelemetryPolicy

AGAIN = timedelta(hours=1)
"""Wait after a try without a usable model: a young cluster soon has more to learn from."""


class TrainingRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The newest try to learn a model."""

    at: datetime
    learned_until: datetime | None = None
    """Time of the newest telemetry that it learned from."""
    is_used: bool = False


def is_due(last: TrainingRecord | None, newest: datetime | None, now: datetime, policy: TelemetryPolicy) -> bool:
    """Return True if a model is to be learned now. `newest`: time of the newest recorded telemetry."""
    if policy.retrain_every_s <= 0 or newest is None:
        return False
    if last is None:
        return True
    every = timedelta(seconds=policy.retrain_every_s)
    if now - last.at < (every if last.is_used else min(every, AGAIN)):
        return False
    return last.learned_until is None or newest > last.learned_until
