"""Section `[code]`: when a version of a job's code counts as good."""

from __future__ import annotations

from typing import Annotated

from holdfast.settings import SETTLED_S_MAX, Section, Within


class CodePolicy(Section, frozen=True, kw_only=True):
    """When a version of a job's code counts as good: until then an error of the script rolls it back."""

    good_after_steps: Annotated[int, Within(1, 1_000_000_000)] = 100
    """Steps that it trains in one generation, with no incident open."""

    good_after_s: Annotated[float, Within(1, SETTLED_S_MAX, "what never comes is no verdict")] = 3600.0
    """Or seconds, whichever comes first."""
