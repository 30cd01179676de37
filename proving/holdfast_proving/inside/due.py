"""When the deciders' states next make something due."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from holdfast.settings.decisions.ladder import LadderPolicy
from holdfast_controller.plan.doubt import doubts, shared_faults
from holdfast_controller.plan.incident import slow
from holdfast_controller.plan.job import JobState
from holdfast_proving.world.agenda import EPOCH
from holdfast_standby.state import Inventory, NodeState

BELIEVED_AFTER = timedelta(seconds=1.001)
"""From the loss of a node on: heartbeats before that may be older than the loss."""


def due_of_jobs(jobs: Iterable[JobState], now: datetime, policy: LadderPolicy) -> datetime | None:
    """Return the next deadline, pause, update, end of a wait or replacement. One that has passed waits for an event."""
    found = []
    for state in jobs:
        if state.is_over:
            continue
        if state.deadline:
            found.append(state.deadline.until)
        if due_at := slow.due_at(state, policy):
            # It may have to wait for the end of an incident.
            found.append(now if slow.is_due(state, now, EPOCH, policy) else due_at)
        if state.replacement_due_at:
            found.append(state.replacement_due_at)
        if state.warm_up_due_at:
            found.append(state.warm_up_due_at)
        if state.hints_due_at:
            found.append(now)
        if state.doubts:
            found += [now] if doubts.is_due(state, now, EPOCH) else [doubt.due_at for doubt in state.doubts.values()]
        if any(shared_faults.is_over(state, key, now, policy) for key in state.shared):
            found.append(now)
        if state.code.pending and state.code.pending.until:
            found.append(state.code.pending.until)
    return _earliest(found, now)


def due_of_nodes(inventory: Inventory, now: datetime) -> datetime | None:
    """Return the next end of a node's time on the blocklist, or the next time at which a node can count as lost."""
    blocked = [node.blocked_until for node in inventory.nodes.values() if node.blocked_until]
    lost = [node.since + BELIEVED_AFTER for node in inventory.nodes.values() if node.state is NodeState.LOST]
    return _earliest([*blocked, *lost], now)


def _earliest(found: list[datetime], now: datetime) -> datetime | None:
    """Return the earliest that is not long past: what is overdue was looked at, and changes by events only."""
    return min((at for at in found if (now - at).total_seconds() < 1.0), default=None)
