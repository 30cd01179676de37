"""Lines of trouble within the last while: more than a few are an anomaly, and who erred first is named. Pure.

TRANSOM §IV-B: training prints little until something goes wrong, and the node that prints errors first is often the one
at fault.
"""

from __future__ import annotations

from collections import deque
from datetime import datetime, timedelta
from typing import NamedTuple


class ErrorLine(NamedTuple):
    """So many lines of one kind, of one rank."""

    at: datetime
    node: str
    rank: int
    signature: str
    times: int
    line: str


class Errors(NamedTuple):
    """More lines of trouble than usual: the `first` of them, and how many there are."""

    first: ErrorLine
    times: int
    nodes: tuple[str, ...]


class ErrorWindow:
    """The lines of one job. Lines may arrive late; those that are older than the window count no more."""

    def __init__(self, window_s: float, count_max: int) -> None:
        self._window = timedelta(seconds=window_s)
        self._count_max = count_max
        self._lines: deque[ErrorLine] = deque()

    def take(self, line: ErrorLine) -> None:
        """A rank printed this."""
        self._lines.append(line)

    def errors(self, now: datetime) -> Errors | None:
        """More than `count_max` lines within the window; None: not so many."""
        self._lines = deque(line for line in self._lines if now - line.at <= self._window)
        count = sum(line.times for line in self._lines)
        if count <= self._count_max:
            return None
        first = min(self._lines, key=lambda line: line.at)
        return Errors(first, count, tuple(sorted({line.node for line in self._lines})))
