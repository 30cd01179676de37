"""Attribution of lost time to causes that act together. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import factorial


def shares_of(causes: Sequence[str], lasts_s: Callable[[frozenset[str]], float]) -> dict[str, float]:
    """Return each cause's Shapley value in seconds: the time saved by removing it, averaged over all orders of removal.
    `lasts_s` returns the duration without those causes. The values add up to the time saved by removing all."""
    known: dict[frozenset[str], float] = {}

    def without_s(gone: frozenset[str]) -> float:
        if gone not in known:
            known[gone] = lasts_s(gone)
        return known[gone]

    count = len(causes)
    found: dict[str, float] = {}
    for cause in causes:
        others = [other for other in causes if other != cause]
        found[cause] = 0.0
        for chosen in range(1 << len(others)):
            gone = frozenset(other for place, other in enumerate(others) if chosen >> place & 1)
            weight = factorial(len(gone)) * factorial(count - len(gone) - 1) / factorial(count)
            found[cause] += weight * (without_s(gone) - without_s(gone | {cause}))
    return found
