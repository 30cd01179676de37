"""Progress of the training logs of a generation: the steps that every log has passed. Pure.

Several ranks may log, each into its own file, and flush it at any time. A step counts once, and only when every rank
that logs has passed it: a number that is not flushed yet may be bad.
"""

from __future__ import annotations

import heapq
from datetime import datetime, timedelta

from holdfast.events import NumbersLogged
from holdfast.events.parts.samples import LoggedSample

SILENT = timedelta(minutes=10)
"""A rank that logged nothing for this long, while others did, logs no more: no writer buffers for that long."""
WAITING_MAX = 100_000


class LoggedSteps:
    def __init__(self) -> None:
        self._positions: dict[str, int] = {}
        self._newest: dict[int, tuple[int, datetime]] = {}
        self._waiting: list[int] = []

    def arrives(self, event: NumbersLogged) -> bool | None:
        """Note a batch. Return True if none is missing before it, False if one is, None if it is a repetition."""
        node = event.node or ""
        expected = self._positions.get(node, 0)
        if event.before < expected:
            return None
        self._positions[node] = event.before + len(event.samples)
        return event.before == expected

    def reached(self, sample: LoggedSample) -> None:
        step, _ = self._newest.get(sample.rank, (sample.step, None))
        self._newest[sample.rank] = (max(step, sample.step), sample.logged_at)

    def clean(self, step: int) -> None:
        """Note a step whose logged numbers are sound."""
        heapq.heappush(self._waiting, step)
        if len(self._waiting) > WAITING_MAX:
            heapq.heappop(self._waiting)

    def doubt(self) -> None:
        self._waiting.clear()

    def passed(self) -> list[int]:
        """Return the clean steps that all logging ranks have passed, each once, in order."""
        if not self._newest:
            return []
        latest = max(at for _, at in self._newest.values())
        frontier = min(step for step, at in self._newest.values() if latest - at < SILENT)
        passed: list[int] = []
        while self._waiting and self._waiting[0] <= frontier:
            step = heapq.heappop(self._waiting)
            if not passed or step > passed[-1]:
                passed.append(step)
        return passed
