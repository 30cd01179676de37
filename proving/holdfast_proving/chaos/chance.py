"""The chance of messages: how long they take, and whether something happens to them."""

from __future__ import annotations

from random import Random


class Chaos:
    """How unkind the simulated world is."""

    def __init__(self, random: Random, share_late: float = 0.05, late_s: float = 5.0) -> None:
        self.random = random
        self.active = True
        self._share_late = share_late
        self._late_s = late_s

    def delay_s(self) -> float:
        """A message's way: mostly milliseconds, now and then seconds, so that messages overtake each other."""
        if not self.active or self.random.random() > self._share_late:
            return 0.001 + self.random.random() * 0.004
        return self.random.random() * self._late_s

    def happens(self, probability: float) -> bool:
        return self.active and self.random.random() < probability
