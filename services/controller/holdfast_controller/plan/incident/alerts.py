"""The alerts of a job's nodes: which ones evict a node beside training (ByteRobust §4.1).

Some alerts prove that the machine is at fault: it is evicted at once, without stop-time checks. Others often pass by
themselves: several within a window evict, and so does one of them together with a crash on the same node.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from holdfast.events import Inspection
from holdfast.growing import GrowingMap
from holdfast.settings.decisions.ladder import LadderPolicy
from holdfast.symptoms import Root, Symptom
from holdfast_controller.plan.incident.incident import ALERT_LINES_MAX, Alert, Failure
from holdfast_controller.plan.job import JobState
from holdfast_controller.plan.phase import Running

KEPT_PER_NODE_MAX = 32


def with_alert(state: JobState, event: Inspection, now: datetime, policy: LadderPolicy) -> JobState:
    """Return the job with this alert noted, or marked as cleared; a cleared alert still counts towards several."""
    node = event.node or ""
    kept = suspicions(state, node, now, policy)
    if event.state != "broken":
        kept = [_over(alert) if _is_of(alert, event) else alert for alert in kept]
    if event.state == "alert":
        kept.append(alert_of(event))
    state = _without_departed(state)
    noted = tuple(kept[-KEPT_PER_NODE_MAX:])
    return state if noted == state.alerts.get(node, ()) else state.update(alerts=state.alerts.having(node, noted))


def _without_departed(state: JobState) -> JobState:
    """Forget alerts of nodes that left the job: at the first alert of a generation, since all would be looked at."""
    if state.alerts_generation == state.generation:
        return state
    alerts = state.alerts
    if any(node not in state.nodes for node in alerts):
        alerts = GrowingMap({node: known for node, known in alerts.items() if node in state.nodes})
    return state.update(alerts=alerts, alerts_generation=state.generation)


def alert_of(event: Inspection) -> Alert:
    """Return the alert that an inspection reports."""
    return Alert(
        at=event.at,
        check=event.check,
        device=event.device,
        kind=event.kind,
        symptom=event.symptom,
        confidence=event.confidence,
        text=describe(event),
        event=event.id,
        stands=not event.is_momentary,
        is_momentary=event.is_momentary,
        shared=event.shared,
        lines=event.lines[:ALERT_LINES_MAX],
    )


def failure(state: JobState, event: Inspection, now: datetime, policy: LadderPolicy) -> Failure | None:
    """Return the failure of the node if this alert, with those before it, is enough to evict it; otherwise None.

    An alert about what several nodes report is a failure of none of them. Neither is one that may pass while the
    job trains.
    """
    if event.state != "alert" or event.confidence == "hint" or alert_of(event).key in state.shared:
        return None
    if event.confidence == "tolerate" and trains_well(state):
        return None
    text = describe(event)
    evidence: tuple[str, ...] = (event.id,)
    if event.confidence == "tolerate":
        of_node = state.alerts.get(event.node or "", ())
        # Counted by check and device: several checks, and all links of a node, may report the same outage.
        seen_by = (event.check, event.device)
        same = [it for it in of_node if (it.check, it.device) == seen_by and is_recent(it, now, policy)]
        if len(same) < policy.alerts_max:
            return None
        since_s = (event.at - same[0].at).total_seconds()
        text = f"{text}; {len(same)} such alerts within {since_s:.0f} s"
        evidence = tuple(alert.event for alert in same)
    return Failure(
        symptom=Symptom.NODE_UNFIT,
        named=event.symptom,
        root=Root.INFRASTRUCTURE,
        generation=state.generation,
        step=state.step,
        text=text,
        node=event.node,
        evidence=evidence,
    )


def trains_well(state: JobState) -> bool:
    """Return True if every node makes steps, and nothing is known that hinders the job."""
    return isinstance(state.phase, Running) and state.incident is None and state.slow is None


def suspicions(state: JobState, node: str | None, now: datetime, policy: LadderPolicy) -> list[Alert]:
    """Return a node's alerts that are not cleared, or are recent; the oldest first."""
    return [alert for alert in state.alerts.get(node or "", ()) if alert.stands or is_recent(alert, now, policy)]


def describe(event: Inspection) -> str:
    """Return an inspection as one line of at most 400 characters."""
    device = f" {event.device}" if event.device else ""
    place = f"the machine of {event.node}" if event.scope == "host" else event.node
    detail = event.detail or (event.lines[0] if event.lines else "")
    return f"{event.check}{device} on {place}: {detail or event.symptom}"[:400]


def is_recent(alert: Alert, now: datetime, policy: LadderPolicy) -> bool:
    return now - alert.at < timedelta(seconds=policy.alerts_window_s)


def _is_of(alert: Alert, event: Inspection) -> bool:
    return (alert.check, alert.device, alert.kind) == (event.check, event.device, event.kind)


def _over(alert: Alert) -> Alert:
    return msgspec.structs.replace(alert, stands=False)
