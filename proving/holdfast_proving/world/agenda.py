"""Simulated time, and everything that will happen in it."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


class Agenda:
    """What will happen, in the order of time. Actions for the same time happen in the order in which they came."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._now = (0.0, EPOCH)
        self._entries: list[tuple[float, int, Callable[[], Any]]] = []
        self._number = 0

    def now(self) -> datetime:
        at, now = self._now
        if at != self.seconds:
            now = moment_of(self.seconds)
            self._now = (self.seconds, now)
        return now

    def after(self, seconds: float, action: Callable[[], Any]) -> None:
        self._number += 1
        heapq.heappush(self._entries, (self.seconds + max(0.0, seconds), self._number, action))

    def at(self, seconds: float, action: Callable[[], Any]) -> None:
        self.after(seconds - self.seconds, action)

    def run(self, until_s: float) -> None:
        """Let everything happen up to this time."""
        while self._entries and self._entries[0][0] <= until_s:
            self.seconds, _, action = heapq.heappop(self._entries)
            action()
        self.seconds = until_s


def moment_of(seconds: float) -> datetime:
    return EPOCH + timedelta(seconds=seconds)


def seconds_of(moment: datetime) -> float:
    return (moment - EPOCH).total_seconds()
