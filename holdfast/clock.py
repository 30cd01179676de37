"""Time as a dependency, so that shells can be driven by a clock that a test owns."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

Now = Callable[[], datetime]


def system_now() -> datetime:
    return datetime.now(UTC)
