"""Which step a rank had completed at a moment: what puts the numbers of a log on the ledger's count of steps. Pure.

A log numbers as its script likes: by samples, by every accumulation, from 0 again after a restart. The moment at which
a number was logged is in the log, and the moment at which each step ended is in the ledger, by the same clock.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right

STEPS_MAX = 32_768
"""Steps that are remembered of a rank: a log that is written that much later is not placed."""


class StepClock:
    """One rank's steps of one generation; `from_first`: from its first one on, or there were others before."""

    def __init__(self, *, from_first: bool = True) -> None:
        self._ended_ns = array("q")
        self._steps = array("q")
        self._from_first = from_first

    def add(self, step: int, ended_ns: int) -> None:
        """A step was completed. Steps come in order; a clock that was set back is not followed."""
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
        """The step that was completed last at that moment; None: nobody knows."""
        place = bisect_right(self._ended_ns, at_ns)
        if place:
            return self._steps[place - 1]
        if not (self._steps and self._from_first):
            return None
        return max(-1, self._steps[0] - 1)
