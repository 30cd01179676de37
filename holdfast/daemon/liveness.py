"""Since when a process has heard the bus without a break. Silence counts only from then on.

A process that was frozen, cut off, restarted, or kept waiting by its store has missed what was said meanwhile.
Whatever it concludes from not having heard something must not count that time (docs/adr/0005-silence.md).
"""

from __future__ import annotations

from datetime import datetime, timedelta

from holdfast.bus import Bus
from holdfast.clock import Now

TICK_S = 0.5
"""How often a process that conducts itself well calls `tick`."""

STALL_S = 2.0
"""A tick that comes later than this says that the process stood still."""


class Hearing:
    """One process's ear."""

    def __init__(self, bus: Bus, now: Now) -> None:
        self._bus = bus
        self._now = now
        self._since = now()
        self._ticked = now()

    def tick(self) -> None:
        """Still alive; to be called every `TICK_S`."""
        now = self._now()
        if now - self._ticked > timedelta(seconds=STALL_S):
            self._since = now
        self._ticked = now

    def interrupt(self) -> None:
        """Something kept this process from taking in what was said until now."""
        self._since = self._now()

    @property
    def since(self) -> datetime | None:
        """Since when it hears without a break; None while it does not."""
        connected = self._bus.connected_since
        return None if connected is None else max(connected, self._since)
