"""When a new model of healthy telemetry is due. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from holdfast.settings.telemetry import TelemetryPolicy

AGAIN = timedelta(hours=1)
"""Where nothing came of the last try, or there was none yet: a young cluster has more to learn from soon."""


class Training(msgspec.Struct, frozen=True, kw_only=True):
    """The newest try: when it was, up to when it learned, and whether its model is used."""

    at: datetime
    learned_until: datetime | None = None
    is_used: bool = False


def is_due(last: Training | None, newest: datetime | None, now: datetime, policy: TelemetryPolicy) -> bool:
    """Whether to learn now. `newest`: of the telemetry that is recorded; without more of it nothing new is learned."""
    if policy.retrain_every_s <= 0 or newest is None:
        return False
    if last is None:
        return True
    every = timedelta(seconds=policy.retrain_every_s)
    if now - last.at < (every if last.is_used else min(every, AGAIN)):
        return False
    return last.learned_until is None or newest > last.learned_until
