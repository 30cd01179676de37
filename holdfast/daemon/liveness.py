"""The time since which a process has received everything on the bus. Silence counts only from then on.

A process that was frozen, cut off, restarted, or kept waiting by its store has missed messages. A conclusion from the
absence of messages must not count that time (docs/adr/0005-silence.md).
"""

from __future__ import annotations

from datetime import datetime, timedelta

from holdfast.bus import Bus
from holdfast.clock import Now

TICK_S = 0.5
"""Interval at which a process calls `tick`."""

STALL_S = 2.0
"""A tick later than this shows that the process was frozen."""


class BusLiveness:
    def __init__(self, bus: Bus, now: Now) -> None:
        self._bus = bus
        self._now = now
        self._since = now()
        self._ticked = now()

    def tick(self) -> None:
        """Note that the process runs; to be called every `TICK_S`."""
        now = self._now()
        # A clock that was put back counts from now on: by times of before it nothing would be silent until they come.
        if not timedelta(0) <= now - self._ticked <= timedelta(seconds=STALL_S):
            self._since = now
        self._ticked = now

    def interrupt(self) -> None:
        """Note that the process could not handle messages until now."""
        self._since = self._now()

    @property
    def since(self) -> datetime | None:
        """Start of the unbroken reception; None without a connection."""
        connected = self._bus.connected_since
        if connected is None:
            return None
        return self._since if connected > self._now() else max(connected, self._since)
