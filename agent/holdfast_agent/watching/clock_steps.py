"""Steps of the machine's clock, which ranks note times by: a time from before one is another by the present clock."""

from __future__ import annotations

import time
from collections.abc import Callable

STEP_NS = 2_000_000_000
"""A wall clock that gained or lost less since the last look was only corrected."""
_KEPT_MAX = 16


class ClockSteps:
    """The steps since this object was made, by a clock that has none. Look often: what happens between two looks counts
    as of before a step.
    """

    def __init__(
        self, wall_ns: Callable[[], int] = time.time_ns, steady_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._wall_ns, self._steady_ns = wall_ns, steady_ns
        self._wall, self._steady = wall_ns(), steady_ns()
        self._forward: list[tuple[int, int]] = []
        """Each step ahead: the last time before it, and by how much."""
        self._back = 0
        """The last step back, a negative number."""

    def look(self) -> None:
        wall, steady = self._wall_ns(), self._steady_ns()
        expected = self._wall + steady - self._steady
        if wall - expected > STEP_NS:
            self._forward = [*self._forward, (expected, wall - expected)][-_KEPT_MAX:]
        elif expected - wall > STEP_NS:
            self._back = wall - expected
        self._wall, self._steady = wall, steady

    def present(self, noted_ns: int) -> int:
        """Convert a time that was noted before the clock was set to the present clock."""
        for until, ahead in self._forward:
            if noted_ns <= until:
                noted_ns += ahead
        return noted_ns + self._back if noted_ns > self._wall + STEP_NS else noted_ns
