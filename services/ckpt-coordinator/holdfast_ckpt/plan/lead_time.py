"""The lead time of a change that all nodes of a job make at the same step."""

from __future__ import annotations

from math import ceil

LEAD_S = 5.0
"""An order takes one to three seconds from a step's samples through analyzer, coordinator and agents to the vaults."""


def lead_steps(step_s: float | None) -> int | None:
    """Return how many steps after the newest known one a change begins; None if the step time is not known yet."""
    return None if not step_s else 1 + ceil(LEAD_S / step_s)
