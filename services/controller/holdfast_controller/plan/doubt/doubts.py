"""Alerts that are sure about a node: they wait a little, to be compared with those of other nodes.

A job that trains loses nothing by it. If a rank fails in the meantime, the alert counts at once.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from holdfast.events import Inspection
from holdfast_controller.plan.doubt.doubt_records import Doubt
from holdfast_controller.plan.doubt.replacement import replace_when_possible, withdraw
from holdfast_controller.plan.draft import JobDraft
from holdfast_controller.plan.incident import alerts
from holdfast_controller.plan.incident.incident import Failure
from holdfast_controller.plan.incident.rung_choice import INSPECTIONS
from holdfast_controller.plan.job import JobState
from holdfast_controller.plan.phase import Ended, Stopping


def doubt(draft: JobDraft, failure: Failure, event: Inspection) -> None:
    """Note a failure that an alert reports, until the wait for other nodes' alerts is over."""
    assert failure.node is not None
    wait_s = draft.rules.ladder.alerts_wait_s if event.confidence == "evict" else 0.0
    if failure.node in draft.state.doubts:
        return
    if not wait_s:
        replace_when_possible(draft, failure, INSPECTIONS)
        return
    noted = Doubt(
        failure=failure,
        key=alerts.alert_of(event).key,
        since=draft.now,
        due_at=draft.now + timedelta(seconds=wait_s),
    )
    draft.update(doubts=draft.state.doubts | {failure.node: noted})


def drop_refuted(draft: JobDraft) -> None:
    """Drop doubts about nodes that left, whose alerts are cleared, or whose fault is shared."""
    for node, noted in list(draft.state.doubts.items()):
        same = [alert for alert in draft.state.alerts.get(node, ()) if alert.key == noted.key]
        is_cleared = bool(same) and not any(alert.stands or alert.is_momentary for alert in same)
        if node in draft.state.nodes and not is_cleared and noted.key not in draft.state.shared:
            continue
        _drop(draft, node)
        withdraw(draft, (node,), f"{node} stays: its alert is over, or is no fault of its own")


def is_due(state: JobState, now: datetime, hearing_since: datetime) -> bool:
    return _next_due(state, now, hearing_since) is not None


def judge(draft: JobDraft, hearing_since: datetime) -> None:
    """Hold the alert against the node whose wait is over: no other node has reported the same."""
    node = _next_due(draft.state, draft.now, hearing_since)
    if node is None:
        return
    noted = draft.state.doubts[node]
    draft.cause = noted.failure.evidence[-1]
    if not replace_when_possible(draft, noted.failure, INSPECTIONS):
        _drop(draft, node)


def _next_due(state: JobState, now: datetime, hearing_since: datetime) -> str | None:
    """Return the earliest doubt that is due; one node is replaced after another."""
    if state.replacement is not None or isinstance(state.phase, Stopping | Ended):
        return None
    due = (
        (noted.due_at, node)
        for node, noted in state.doubts.items()
        if node in state.nodes and now - max(noted.since, hearing_since) >= noted.due_at - noted.since
    )
    return min(due, default=(None, None))[1]


def _drop(draft: JobDraft, node: str) -> None:
    draft.update(doubts={other: noted for other, noted in draft.state.doubts.items() if other != node})
