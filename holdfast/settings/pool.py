"""Section `[pool]`: the size of the warm pool."""

from __future__ import annotations

import msgspec

from holdfast.settings.ranges import require_within


class PoolPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the warm pool is kept."""

    size: int = 0
    """Standby nodes that new jobs leave in the pool for those that lose a node."""

    def __post_init__(self) -> None:
        require_within(self, size=(0, 1_000_000))
