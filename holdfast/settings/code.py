"""Section `[code]`: conditions for a version of a job's code to count as good."""

from __future__ import annotations

from typing import Annotated

from holdfast.settings import SETTLED_S_MAX, Section, Within


class CodePolicy(Section, frozen=True, kw_only=True):
    """Conditions for a version of a job's code to count as good; before that an error of the script rolls it back."""

    good_after_steps: Annotated[int, Within(1, 1_000_000_000)] = 100
    """Steps in one generation with no open incident."""

    good_after_s: Annotated[float, Within(1, SETTLED_S_MAX, "longer is never reached")] = 3600.0
    """Or seconds, whichever comes first."""
