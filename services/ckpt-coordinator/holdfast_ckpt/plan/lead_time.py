"""How far ahead a step is named at which all nodes of a job are to do the same. Pure."""

from __future__ import annotations

from math import ceil

LEAD_S = 5.0
"""From the samples of a step over analyzer, coordinator and agents to the vaults takes one to three seconds."""


def lead_steps(step_s: float | None) -> int | None:
    """How many steps after the newest one that is known; None: it is not known yet how long they take."""
    return None if not step_s else 1 + ceil(LEAD_S / step_s)
