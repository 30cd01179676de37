"""Error lines within a time window: more than a few are an anomaly, and the first rank with one is named. Pure.

TRANSOM §IV-B: training prints little until something goes wrong; the node that prints errors first is often at fault.
"""

from __future__ import annotations

from collections import deque
from datetime import datetime, timedelta
from typing import NamedTuple


class ErrorLine(NamedTuple):
    """Number of lines of one kind, of one rank."""

    at: datetime
    node: str
    rank: int
    signature: str
    times: int
    line: str


class ErrorBurst(NamedTuple):
    """More error lines than usual: the `first` of them, and their number."""

    first: ErrorLine
    times: int
    nodes: tuple[str, ...]


class ErrorWindow:
    """Error lines of one job. Lines may arrive late; those older than the window are ignored."""

    def __init__(self, window_s: float, count_max: int) -> None:
        self._window = timedelta(seconds=window_s)
        self._count_max = count_max
        self._lines: deque[ErrorLine] = deque()

    def take(self, line: ErrorLine) -> None:
        self._lines.append(line)

    def errors(self, now: datetime) -> ErrorBurst | None:
        """Return the burst if there are more than `count_max` lines within the window, else None."""
        self._lines = deque(line for line in self._lines if now - line.at <= self._window)
        count = sum(line.times for line in self._lines)
        if count <= self._count_max:
            return None
        first = min(self._lines, key=lambda line: line.at)
        return ErrorBurst(first, count, tuple(sorted({line.node for line in self._lines})))
