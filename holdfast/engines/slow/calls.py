"""Observations of a running job: the collectives that ranks call, and the iterations that they form. Pure.

Times of a rank are from its own clock and are only subtracted from times of the same rank: nodes' clocks differ.
"""

from __future__ import annotations

import msgspec


class CollectiveCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One intercepted collective of one rank."""

    rank: int
    sequence: int
    """Number of the rank's call: a gap shows lost records."""
    operation: str
    group: str
    bytes: int = 0
    entered_ns: int
    exited_ns: int = 0
    """0: unknown."""


class IterationTime(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One iteration of one rank, reported as it ends."""

    rank: int
    iteration: int
    """Number on this rank."""
    duration_s: float
    pattern: int = 0
    """Number of the repeating sequence: training and evaluation repeat different ones and are compared only with
    themselves."""
    ended_ns: int = 0
    in_calls_s: float | None = None
    """Time inside collectives; None: exits are unknown."""

    @property
    def work_s(self) -> float | None:
        """Seconds outside of collectives: the rank's own work."""
        return None if self.in_calls_s is None else max(0.0, self.duration_s - self.in_calls_s)
