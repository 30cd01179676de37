"""Decides the distance of the steps that a job keeps in memory: 1, unless that costs too much of its time.

The unit of decision is a window of `WINDOW` steps. In its middle each rank votes, by what the kept steps have cost it.
From the next window on the job keeps one step in `every`, the same steps on all ranks (`agreement.py`). `every` is a
power of two: so the first step of a window is always kept, and a closer spacing includes each step of a wider one.

Hysteresis: a rank votes for twice the distance above the limit, and for half the distance only if that would cost less
than half of the limit. The cost of a closer spacing is not known before it is tried: a step that is still being sealed
may delay the next one. So each attempt that was taken back doubles the time until the next attempt.
"""

from __future__ import annotations

from collections import deque
from enum import IntEnum
from statistics import median
from typing import NamedTuple

WINDOW = 32
EVERY_MAX = WINDOW
SAMPLES_MIN = 4
"""A rank asks for no change by fewer kept steps than these."""
SAMPLES_MAX = WINDOW
PATIENCE_MIN = 8
"""Windows after a change until a closer spacing is tried."""
PATIENCE_MAX = 128


class Vote(IntEnum):
    CLOSER = 0
    """Half the distance would cost little enough."""
    SAME = 1
    WIDER = 2


class Costs(NamedTuple):
    """Cost of keeping one step for a rank, and the time of a training step without it; medians, in seconds."""

    keep_s: float
    step_s: float

    def share(self, every: int) -> float:
        """Return the share of the job's time that it costs to keep one step in `every`."""
        return self.keep_s / (every * self.step_s) if self.step_s > 0 else 0.0


class Limit(NamedTuple):
    share: float
    """Largest share of training's time that keeping steps may cost."""
    keep_s: float
    """A step that costs less than this is never too expensive: it could not be told from noise."""

    def is_exceeded(self, costs: Costs, every: int) -> bool:
        return costs.keep_s > self.keep_s and costs.share(every) > self.share


def vote(costs: Costs | None, every: int, limit: Limit, *, is_patient: bool) -> Vote:
    """Return a rank's vote. `costs` None: too little is known. `is_patient`: it is not time to try a closer spacing."""
    if every == 1 and (costs is None or not limit.is_exceeded(costs, 1)):
        return Vote.CLOSER  # it is as close as can be
    if costs is None:
        return Vote.SAME
    if limit.is_exceeded(costs, every):
        return Vote.WIDER
    if is_patient or limit._replace(share=limit.share / 2).is_exceeded(costs, every // 2):
        return Vote.SAME
    return Vote.CLOSER


def is_kept(step: int, before: int | None, every: int) -> bool:
    """Return True if a step is kept: the first of its block of `every` steps that the script has to keep. `before` is
    the last that it had, kept or not.
    """
    return every == 1 or before is None or step // every != before // every


class Spacing:
    """The distance in force, and how long a closer one is not to be tried. The same on all ranks of a job."""

    def __init__(self) -> None:
        self.every = 1
        self._windows = 0
        """Number of windows since the last change."""
        self._patience = PATIENCE_MIN
        self._was_closer = False
        """The last change was an attempt with a closer spacing."""

    @property
    def is_patient(self) -> bool:
        return self._windows < self._patience

    def follow(self, every: int) -> bool:
        """Begin a window with this distance; return True if it is another one."""
        self._windows += 1
        if every == self.every:
            return False
        is_closer = every < self.every
        if not is_closer:
            failed = self._was_closer and self._windows <= PATIENCE_MIN
            self._patience = min(2 * self._patience, PATIENCE_MAX) if failed else PATIENCE_MIN
        self.every, self._windows, self._was_closer = every, 0, is_closer
        return True


class Samples:
    """The last kept steps' costs, and the times of steps."""

    def __init__(self) -> None:
        self._keeps: deque[float] = deque(maxlen=SAMPLES_MAX)
        self._steps: deque[float] = deque(maxlen=SAMPLES_MAX)

    def add(self, keep_s: float | None, step_s: float) -> None:
        """Take what a step has cost (None: it was not kept), and what it took besides."""
        if keep_s is not None:
            self._keeps.append(keep_s)
        self._steps.append(step_s)

    def start_over(self) -> None:
        """Forget what was measured with another distance."""
        self._keeps.clear()

    def costs(self) -> Costs | None:
        """Return the medians; None: there are too few."""
        if len(self._keeps) < SAMPLES_MIN:
            return None
        return Costs(median(self._keeps), median(self._steps))


BITS = 20
RANKS_MAX = (1 << BITS) - 1
"""Most ranks of a job whose votes fit into one number."""


def ballot(of: Vote) -> int:
    """Return a vote as a summand of a count: all ranks' votes are one number."""
    return 1 + (int(of is Vote.SAME) << BITS) + (int(of is Vote.WIDER) << 2 * BITS)


def outcome(count: int, ranks: int, every: int) -> int:
    """Return the distance that follows on `every`, by the sum of the ballots. It changes only if all ranks have voted:
    one that cannot vote may not learn of a change either.
    """
    voted, same, wider = (count >> place * BITS & RANKS_MAX for place in range(3))
    if voted != ranks:
        return every
    if wider:
        return min(2 * every, EVERY_MAX)
    return every if same else max(1, every // 2)
