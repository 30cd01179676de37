"""Text about a job that does not keep every step in memory (ADR 58)."""

from __future__ import annotations


def one_in(every: int) -> str:
    """Return, for example, "one step in 8"."""
    return "every step" if every == 1 else f"one step in {every}"


def repeated_max(every: int) -> int:
    """Return how many steps a restart in place may train again: the newest that is kept may not be whole."""
    return 2 * every
