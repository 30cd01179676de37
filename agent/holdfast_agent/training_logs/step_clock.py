"""Mapping from time to a rank's completed steps, which assigns logged numbers to the ledger's steps. Pure.

Logs number steps in the script's own way: by samples, by accumulations, from 0 after a restart. But a log has the time
of each number and the ledger the time of each step, by the same clock.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right

STEPS_MAX = 32_768
"""Steps remembered for each rank; a number logged later than that is not assigned."""


class StepClock:
    """A rank's steps in one generation. `from_first`: True if no earlier steps are missing."""

    def __init__(self, *, from_first: bool = True) -> None:
        self._ended_ns = array("q")
        self._steps = array("q")
        self._from_first = from_first

    def add(self, step: int, ended_ns: int) -> None:
        """Add a completed step. Steps come in order; a step before the last one (clock set back) is ignored."""
        if self._ended_ns and ended_ns < self._ended_ns[-1]:
            ended_ns = self._ended_ns[-1]
        self._ended_ns.append(ended_ns)
        self._steps.append(step)
        if len(self._steps) > STEPS_MAX:
            half = STEPS_MAX // 2
            del self._ended_ns[:half]
            del self._steps[:half]
            self._from_first = False

    def step_at(self, at_ns: int) -> int | None:
        """Return the last step completed at that time; None if unknown."""
        place = bisect_right(self._ended_ns, at_ns)
        if place:
            return self._steps[place - 1]
        if not (self._steps and self._from_first):
            return None
        return max(-1, self._steps[0] - 1)
