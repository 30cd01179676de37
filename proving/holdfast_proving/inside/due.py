"""When the deciders' states next make something due."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from holdfast_controller.plan.incident import slow
from holdfast_controller.plan.job import JobState
from holdfast_proving.world.agenda import EPOCH
from holdfast_standby.state import Inventory


def due_of_jobs(jobs: Iterable[JobState], now: datetime) -> datetime | None:
    """Return the next deadline, pause, update or replacement of a slow node. One that has passed waits for an event."""
    found = []
    for state in jobs:
        if state.is_over:
            continue
        if state.deadline:
            found.append(state.deadline.until)
        if state.slow:
            # It may have to wait for the end of an incident.
            found.append(now if slow.is_due(state, now, EPOCH) else state.slow.due_at)
        if state.code.pending and state.code.pending.until:
            found.append(state.code.pending.until)
    return _earliest(found, now)


def due_of_nodes(inventory: Inventory, now: datetime) -> datetime | None:
    """Return the next end of a node's time on the blocklist."""
    return _earliest([node.blocked_until for node in inventory.nodes.values() if node.blocked_until], now)


def _earliest(found: list[datetime], now: datetime) -> datetime | None:
    """Return the earliest that is not long past: what is overdue was looked at, and changes by events only."""
    return min((at for at in found if (now - at).total_seconds() < 1.0), default=None)
