"""How far the training logs of a generation have said that its steps are clean. Pure.

Several ranks may log, each into a file of its own that it writes out when it likes. A step counts once, and only once
every rank that logs has come past it: what one of them has said of it and not written out yet may be bad.
"""

from __future__ import annotations

import heapq
from datetime import datetime, timedelta

from holdfast.events import NumbersLogged
from holdfast.events.parts.samples import LoggedSample

SILENT = timedelta(minutes=10)
"""A rank that logged nothing for so long, while others did, logs no more: writers keep nothing back for that long."""
WAITING_MAX = 100_000


class LoggedSteps:
    """The logs of one generation."""

    def __init__(self) -> None:
        self._positions: dict[str, int] = {}
        self._newest: dict[int, tuple[int, datetime]] = {}
        self._waiting: list[int] = []

    def arrives(self, event: NumbersLogged) -> bool | None:
        """Whether this is what comes next of its node; False: something is missing before it. None: it was heard."""
        node = event.node or ""
        expected = self._positions.get(node, 0)
        if event.before < expected:
            return None
        self._positions[node] = event.before + len(event.samples)
        return event.before == expected

    def came_to(self, sample: LoggedSample) -> None:
        """A rank has logged at this step."""
        step, _ = self._newest.get(sample.rank, (sample.step, None))
        self._newest[sample.rank] = (max(step, sample.step), sample.logged_at)

    def clean(self, step: int) -> None:
        """What was logged at this step is sound."""
        heapq.heappush(self._waiting, step)
        if len(self._waiting) > WAITING_MAX:
            heapq.heappop(self._waiting)

    def doubt(self) -> None:
        """What was said up to now counts for nothing."""
        self._waiting.clear()

    def passed(self) -> list[int]:
        """The clean steps that all who log have come past by now, each once, in order."""
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
