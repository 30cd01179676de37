"""Numbers that are set are finite and within what the code was made for: others overflow dates, or wait for ever."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

Range: TypeAlias = tuple[float, float] | tuple[float, float, str]
"""The least, the most, and why it is so where a reader would not guess."""


def require_within(settings: msgspec.Struct, **ranges: Range) -> None:
    """
    Raises:
        ValueError: a field is outside of its range; the message names it, its value and the range.
    """
    for name, (low, high, *why) in ranges.items():
        value = getattr(settings, name)
        # Not the other way round: what is no number compares with nothing.
        if not low <= value <= high:
            reason = f": {why[0]}" if why else ""
            raise ValueError(f"{name} = {value:g} must be at least {low:.12g} and at most {high:.12g}{reason}")
