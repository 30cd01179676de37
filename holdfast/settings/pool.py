"""Section `[pool]`: the size of the warm pool."""

from __future__ import annotations

from typing import Annotated

from holdfast.settings import Section, Within


class PoolPolicy(Section, frozen=True, kw_only=True):
    """The warm pool."""

    size: Annotated[int, Within(0, 1_000_000)] = 0
    """Standby nodes that new jobs leave free, for jobs that lose a node; 0: computed from `quantile`."""

    quantile: Annotated[float, Within(0.0, 0.999999)] = 0.99
    """Share of the days on which the standbys suffice for the machines that fail, by the failures of the last 30 days
    (ByteRobust: P99); 0: new jobs leave none free."""
