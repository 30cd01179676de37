"""What is seen of a job that goes on: the collectives its ranks call, and the iterations these make up. Pure.

Times of one rank are by its own clock, and only ever subtracted from times of the same rank: clocks of nodes differ.
"""

from __future__ import annotations

import msgspec


class CollectiveCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One intercepted collective of one rank.

    `sequence` counts the rank's calls, so that a hole tells of records that were lost; `group_sequence` counts those
    of the group and is the same on all its ranks. `exited_ns` 0: not known.
    """

    rank: int
    sequence: int
    operation: str
    group: str
    bytes: int = 0
    entered_ns: int
    exited_ns: int = 0
    group_sequence: int = 0


class IterationTime(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One iteration of one rank, told as it ends.

    `iteration` counts them on this rank. `pattern` numbers what repeats: training and evaluation repeat different
    things, and compare only with themselves. `in_calls_s` is spent inside of collectives; None: exits are not known.
    """

    rank: int
    iteration: int
    duration_s: float
    pattern: int = 0
    ended_ns: int = 0
    in_calls_s: float | None = None

    @property
    def work_s(self) -> float | None:
        """What the rank spent outside of collectives: what is its own."""
        return None if self.in_calls_s is None else max(0.0, self.duration_s - self.in_calls_s)
