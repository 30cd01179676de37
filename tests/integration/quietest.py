"""How long something takes, on a machine that others use too."""

from __future__ import annotations

from statistics import median

ROUND = 20


def typical_s(took_s: list[float]) -> float:
    """The median of the quietest round of measurements: what it takes where nobody is in the way."""
    return min(median(took_s[begin : begin + ROUND]) for begin in range(0, len(took_s), ROUND))
