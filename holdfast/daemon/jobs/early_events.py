"""Events that wait for the decision that begins their generation. Pure; in memory.

A node receives its order after that decision was published, so an honest event waits for a moment only. An event that
waits longer comes from a node that names a generation which does not exist. Each node has a small share of the memory,
so that it cannot use up the share of another one.
"""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta
from typing import NamedTuple

from holdfast.bus import Delivery
from holdfast.events import AnyEvent

KEPT = timedelta(seconds=60)
OF_NODE_MAX = 256
OF_NODE_BYTES_MAX = 2 << 20


class EarlyEvent(NamedTuple):
    at: datetime
    event: AnyEvent
    delivery: Delivery


class EarlyEvents:
    """All events that wait, in the order of their arrival."""

    def __init__(self) -> None:
        self._waiting: dict[int, EarlyEvent] = {}
        self._arrived = 0
        self._count: Counter[str | None] = Counter()
        self._bytes: Counter[str | None] = Counter()

    def __len__(self) -> int:
        return len(self._waiting)

    def keep(self, event: AnyEvent, delivery: Delivery, now: datetime) -> bool:
        """Keep an event; return False if its node's share is used up, and the event is given up."""
        node, size = event.node, len(delivery.body)
        if self._count[node] >= OF_NODE_MAX or self._bytes[node] + size > OF_NODE_BYTES_MAX:
            return False
        self._arrived += 1
        self._waiting[self._arrived] = EarlyEvent(now, event, delivery)
        self._count[node] += 1
        self._bytes[node] += size
        return True

    def take(self, job: str) -> list[EarlyEvent]:
        """Return the events of a job, which do not wait any more."""
        return [self._remove(number) for number, waiting in [*self._waiting.items()] if waiting.event.job == job]

    def give_up(self, now: datetime) -> list[EarlyEvent]:
        """Return the events that have waited for too long, which do not wait any more."""
        return [self._remove(number) for number, waiting in [*self._waiting.items()] if now - waiting.at > KEPT]

    def _remove(self, number: int) -> EarlyEvent:
        waiting = self._waiting.pop(number)
        node = waiting.event.node
        self._count[node] -= 1
        self._bytes[node] -= len(waiting.delivery.body)
        if not self._count[node]:
            del self._count[node], self._bytes[node]
        return waiting
