"""Observations of a running job: the collectives that ranks call, and the iterations that they form. Pure.

Times of a rank are from its own clock and are only subtracted from times of the same rank: nodes' clocks differ.
"""

from __future__ import annotations

import msgspec


class CollectiveCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One intercepted collective of one rank. `sequence` counts the rank's calls, so a gap shows lost records.
    `group_sequence` counts the group's calls and is equal on all its ranks. `exited_ns` 0: unknown."""

    rank: int
    sequence: int
    operation: str
    group: str
    bytes: int = 0
    entered_ns: int
    exited_ns: int = 0
    group_sequence: int = 0


class IterationTime(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One iteration of one rank, reported as it ends. `iteration` counts them on this rank. `pattern` numbers the
    repeating sequence: training and evaluation repeat different ones and are compared only with themselves.
    `in_calls_s`: time inside collectives; None: exits are unknown."""

    rank: int
    iteration: int
    duration_s: float
    pattern: int = 0
    ended_ns: int = 0
    in_calls_s: float | None = None

    @property
    def work_s(self) -> float | None:
        """Seconds outside of collectives: the rank's own work."""
        return None if self.in_calls_s is None else max(0.0, self.duration_s - self.in_calls_s)
