"""What inspections of a job's nodes lead to, beside training (ByteRobust §4.1). Pure.

Some alerts name their machine without doubt, and it is evicted at once, without stop-time checks. Others often pass by
themselves: several within a window evict. Hints prove nothing, but a node that shows one when a rank crashes on it is
no longer a crash without a culprit.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from holdfast.events import Inspection
from holdfast.settings.ladder import LadderPolicy
from holdfast.symptoms import Root, Symptom
from holdfast_controller.plan.incident.incident import Alert, Failure
from holdfast_controller.plan.job import JobState

KEPT_PER_NODE_MAX = 32


def noted(state: JobState, event: Inspection, now: datetime, policy: LadderPolicy) -> JobState:
    """The job with this alert, or without one that was cleared: it still counts among several, but no longer stands."""
    node = event.node or ""
    kept = suspicions(state, node, now, policy)
    if event.state != "broken":
        kept = [_over(alert) if _is_of(alert, event) else alert for alert in kept]
    if event.state == "alert":
        kept.append(
            Alert(
                at=event.at,
                check=event.check,
                device=event.device,
                kind=event.kind,
                symptom=event.symptom,
                confidence=event.confidence,
                text=in_words(event),
                event=event.id,
                stands=not event.is_momentary,
            )
        )
    alerts = {other: known for other, known in state.alerts.items() if other != node and other in state.nodes}
    if kept:
        alerts[node] = tuple(kept[-KEPT_PER_NODE_MAX:])
    return state.update(alerts=alerts)


def failure(state: JobState, event: Inspection, now: datetime, policy: LadderPolicy) -> Failure | None:
    """What is wrong with the node, if this alert, with those before it, is enough to evict it."""
    if event.state != "alert" or event.confidence == "hint":
        return None
    text = in_words(event)
    evidence: tuple[str, ...] = (event.id,)
    if event.confidence == "tolerate":
        of_node = state.alerts.get(event.node or "", ())
        # By check and device: one and the same outage may be seen by several checks, and by all links of a node.
        seen_by = (event.check, event.device)
        same = [it for it in of_node if (it.check, it.device) == seen_by and _is_recent(it, now, policy)]
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


def suspicions(state: JobState, node: str | None, now: datetime, policy: LadderPolicy) -> list[Alert]:
    """A node's alerts that stand, or stood a short while ago; the oldest first."""
    return [alert for alert in state.alerts.get(node or "", ()) if alert.stands or _is_recent(alert, now, policy)]


def in_words(event: Inspection) -> str:
    """One line that says what was found where."""
    device = f" {event.device}" if event.device else ""
    whose = f"the machine of {event.node}" if event.scope == "host" else event.node
    detail = event.detail or (event.lines[0] if event.lines else "")
    return f"{event.check}{device} on {whose}: {detail or event.symptom}"[:400]


def _is_recent(alert: Alert, now: datetime, policy: LadderPolicy) -> bool:
    return now - alert.at < timedelta(seconds=policy.alerts_window_s)


def _is_of(alert: Alert, event: Inspection) -> bool:
    return (alert.check, alert.device, alert.kind) == (event.check, event.device, event.kind)


def _over(alert: Alert) -> Alert:
    return msgspec.structs.replace(alert, stands=False)
