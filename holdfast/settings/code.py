"""Section `[code]`: when a version of a job's code counts as good."""

from __future__ import annotations

import msgspec

from holdfast.settings.ladder import SETTLED_S_MAX
from holdfast.settings.ranges import require_within


class CodePolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a version of a job's code counts as good: until then an error of the script rolls it back."""

    good_after_steps: int = 100
    """Steps that it trains in one generation, with no incident open."""

    good_after_s: float = 3600.0
    """Or seconds, whichever comes first."""

    def __post_init__(self) -> None:
        require_within(
            self, good_after_steps=(1, 1_000_000_000), good_after_s=(1, SETTLED_S_MAX, "what never comes is no verdict")
        )
