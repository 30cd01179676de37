"""The time that an order takes from the analyzer to an agent."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

IDLE_S = ((0.5, 0.001), (0.9, 0.008), (0.99, 0.02), (1.0, 0.3))
BUSY_S = ((0.5, 0.15), (0.9, 0.8), (0.99, 2.0), (1.0, 3.0))
"""Shares of orders, and the seconds within which they are there. On a node that waits it is what `bench/late_orders.py`
measures. The busy one is assumed: with four computing processes for each processor the bench found 0.007, 0.09 and
0.16 s at half, at 99 % and at most, and in tests on busier machines an order came seconds late.
"""


def arrival_s(quantiles: Sequence[tuple[float, float]], chance: Random) -> float:
    """Draw the time that one order takes; between two shares it is a straight line."""
    drawn = chance.random()
    below, at_s = 0.0, 0.0
    for share, until_s in quantiles:
        if drawn <= share:
            return at_s + (until_s - at_s) * (drawn - below) / (share - below)
        below, at_s = share, until_s
    return at_s
