"""Section `[pool]`: the size of the warm pool."""

from __future__ import annotations

from typing import Annotated

from holdfast.settings import Section, Within


class PoolPolicy(Section, frozen=True, kw_only=True):
    """The warm pool."""

    size: Annotated[int, Within(0, 1_000_000)] = 0
    """Standby nodes that new jobs leave free, for jobs that lose a node."""
