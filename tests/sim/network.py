"""The simulated bus: every message arrives at least once, at some time, in some order; the seed decides which."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


class World:
    """Simulated time and everything that will happen in it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.seconds = 0.0
        self._now = (0.0, EPOCH)
        self._agenda: list[tuple[float, int, Callable[[], Any]]] = []
        self._number = 0

    def now(self) -> datetime:
        at, now = self._now
        if at != self.seconds:
            now = EPOCH + timedelta(seconds=self.seconds)
            self._now = (self.seconds, now)
        return now

    def after(self, seconds: float, action: Callable[[], Any]) -> None:
        self._number += 1
        heapq.heappush(self._agenda, (self.seconds + seconds, self._number, action))

    async def run(self, until: Callable[[], bool], limit_s: float) -> bool:
        """Let things happen until the condition holds; False if it does not within simulated `limit_s`."""
        while self._agenda and self.seconds < limit_s:
            if until():
                return True
            self.seconds, _, action = heapq.heappop(self._agenda)
            result = action()
            if result is not None:
                await result
        return until()


class SimDelivery:
    """One delivery of a message to one consumer; unsettled or retried, it comes again."""

    def __init__(
        self, subject: str, body: bytes, again: Callable[[SimDelivery], None], deliveries: int, stored_at: datetime
    ) -> None:
        self.subject = subject
        self.body = body
        self.headers: dict[str, str] = {}
        self.deliveries = deliveries
        self.stored_at = stored_at
        self._again = again
        self.settled = False
        self.is_stored: Callable[[], bool] = lambda: True

    async def ack(self) -> None:
        self.settled = True

    async def drop(self) -> None:
        self.settled = True

    async def retry(self, delay_s: float) -> None:
        self._again(self)
