"""Ranks that a signal has stopped: their own process, or one that they have started, such as a rank of a script that
spawns its ranks itself.

All processes of the machine are listed for the latter. So it is done every few seconds, and only while no rank notes
anything: what is stopped holds nothing up as long as they do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime

from holdfast.node.kernel import is_suspended
from holdfast_agent.plan.node_state import RankStatus
from holdfast_agent.tracer.process_tree import Process, processes_of
from holdfast_agent.zygote.wire import Fence

LOOK_EVERY_S = 1.0
LOOK_AT_CHILDREN_EVERY_S = 3.0
STILL_S = 3.0
"""Time in which no rank of the node has noted anything, before their children are looked at."""


class StoppedRanks:
    def __init__(
        self,
        is_stopped: Callable[[int], bool] = is_suspended,
        processes: Callable[[Mapping[int, int]], Iterable[Process]] = processes_of,
    ) -> None:
        self._is_stopped = is_stopped
        self._processes = processes
        self._fence: Fence | None = None
        self._looked_at: datetime | None = None
        self._found: frozenset[int] = frozenset()
        self._children_looked_at: datetime | None = None
        self._children: dict[int, int] = {}
        """The children that were stopped at the last look, and their ranks."""
        self._of_children: frozenset[int] = frozenset()

    def look(
        self, fence: Fence, pids: Mapping[int, int], statuses: Mapping[int, RankStatus], now: datetime
    ) -> frozenset[int]:
        """Return the stopped ranks of these (rank -> pid), as of a moment ago."""
        if fence != self._fence:
            self._fence, self._looked_at, self._children_looked_at = fence, None, None
            self._children, self._of_children = {}, frozenset()
        if self._looked_at is None or (now - self._looked_at).total_seconds() >= LOOK_EVERY_S:
            self._looked_at = now
            own = frozenset(rank for rank, pid in pids.items() if self._is_stopped(pid))
            self._found = own | self._stopped_children(pids, statuses, now)
        return self._found

    def _stopped_children(
        self, pids: Mapping[int, int], statuses: Mapping[int, RankStatus], now: datetime
    ) -> frozenset[int]:
        if not _is_still(statuses, now):
            self._children_looked_at, self._children, self._of_children = None, {}, frozenset()
            return self._of_children
        looked_at = self._children_looked_at
        if looked_at is None or (now - looked_at).total_seconds() >= LOOK_AT_CHILDREN_EVERY_S:
            self._children_looked_at = now
            before = self._children
            self._children = {
                process.pid: process.rank
                for process in self._processes(pids)
                if process.pid != pids[process.rank] and self._is_stopped(process.pid)
            }
            # A process may be stopped for a moment, to copy its memory for instance: two looks must find it so.
            self._of_children = frozenset(rank for pid, rank in self._children.items() if pid in before)
        return self._of_children


def _is_still(statuses: Mapping[int, RankStatus], now: datetime) -> bool:
    changed = [status.changed_at for status in statuses.values() if not status.has_ended]
    return bool(changed) and all(at is not None and (now - at).total_seconds() >= STILL_S for at in changed)
