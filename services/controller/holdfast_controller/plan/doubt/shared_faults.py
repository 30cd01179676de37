"""Faults of what nodes share: the same check on the same thing from two nodes or more is that thing's fault, once.

A thing is shared if its name is (`Inspection.shared`: an address, a file system). A device of the same name on another
node is another device; but where one check names far more nodes than can fail by chance within one wait, they have a
cause in common. No node is evicted for a shared fault, and one that already was comes back.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from holdfast.events import EvictionRevoked, Inspection, NodeLost, SharedFaultFound
from holdfast.events.parts.job import Grant
from holdfast.settings.decisions.ladder import LadderPolicy
from holdfast.symptoms import Symptom
from holdfast_controller.plan.doubt.doubt_records import LostNode, SharedFault
from holdfast_controller.plan.draft import JobDraft
from holdfast_controller.plan.incident import alerts
from holdfast_controller.plan.incident.incident import Alert
from holdfast_controller.plan.job import JobState
from holdfast_controller.plan.record.noting import note_cleared, strike_alerts

SEEN_BY_MIN = 2
"""Nodes whose alerts on one named thing make it that thing's fault."""

BY_CHANCE_MAX = 2
"""Devices of a job's nodes that may fail at the same time without a cause in common, however small the job."""

TOGETHER_S = 30.0
"""Nodes lost within this time went together."""

SILENCE, WARM_UP = "heartbeat", "warm-up"
"""Names of shared faults that no alert reports: nodes fell silent, or failed the warm-up, together. Such a fault is
over when the job trains."""


def compare(draft: JobDraft, event: Inspection) -> None:
    """Compare an alert with those of other nodes, and note a fault that they share."""
    if event.state == "alert":
        key = alerts.alert_of(event).key
        reporters = _reporters(draft, event, key)
        if key in draft.state.shared or len(reporters) >= _seen_by_min(draft.state, event, draft.rules.ladder):
            thing = event.shared or f"{event.check} on many machines"
            note(draft, key, thing, event.symptom, reporters, alerts.describe(event))
            _release(draft, key)
    close_over(draft)


def reported_elsewhere(draft: JobDraft, event: Inspection) -> None:
    """Compare an alert of another job's node with those of this job's nodes about the same shared thing."""
    if event.state == "alert" and event.shared:
        compare(draft, event)


def reporters_of(state: JobState, event: Inspection, now: datetime, policy: LadderPolicy) -> dict[str, datetime]:
    """Return the job's nodes that report the shared thing of this alert, or were evicted for it, and since when."""
    key = alerts.alert_of(event).key
    seen = {it.node: it.at for it in state.convicted for alert in it.alerts if alert.key == key}
    for node in state.alerts:
        if node in state.nodes:
            known = [it.at for it in alerts.suspicions(state, node, now, policy) if it.key == key]
            seen |= {node: known[0]} if known else {}
    return seen


def lost(draft: JobDraft, event: NodeLost, member: Grant) -> None:
    """Compare the loss of a node with those just before it: several at once have a cause in common."""
    recent = timedelta(seconds=TOGETHER_S)
    before = tuple(it for it in draft.state.lost if draft.now - it.at <= recent and it.node != member.node)
    gone = (*before, LostNode(node=member.node, rack=member.rack, at=draft.now))
    draft.update(lost=gone)
    if len(gone) < SEEN_BY_MIN:
        return
    racks = {it.rack for it in gone}
    thing = f"rack {gone[0].rack}" if len(racks) == 1 and gone[0].rack else "power or network of several machines"
    names = tuple(it.node for it in gone)
    text = f"no heartbeat from {' and '.join(names)}, lost within {TOGETHER_S:.0f} s of each other"
    note(draft, SILENCE, thing, Symptom.NODE_LOST, names, text)


def close_over(draft: JobDraft) -> None:
    """End shared faults that no node reports any more."""
    for key, fault in draft.state.shared.items():
        if is_over(draft.state, key, draft.now, draft.rules.ladder):
            draft.cause = fault.event or draft.cause
            why = "the job trains" if _is_of_job(key) else "no node reports it any more"
            draft.close_shared_fault(key, why)


def is_over(state: JobState, key: str, now: datetime, policy: LadderPolicy) -> bool:
    """Return True if no node of the job reports this shared fault any more."""
    if _is_of_job(key):
        return alerts.trains_well(state)
    return not any(_lasts(alert, key, now, policy) for node in state.nodes for alert in state.alerts.get(node, ()))


def _is_of_job(key: str) -> bool:
    return key.partition("/")[0] in (SILENCE, WARM_UP)


def _lasts(alert: Alert, key: str, now: datetime, policy: LadderPolicy) -> bool:
    return alert.key == key and (alert.stands or (alert.is_momentary and alerts.is_recent(alert, now, policy)))


def _seen_by_min(state: JobState, event: Inspection, policy: LadderPolicy) -> float:
    if event.shared:
        return SEEN_BY_MIN
    if event.confidence != "evict":
        return float("inf")
    return max(BY_CHANCE_MAX, int(policy.evictions_share_max * state.spec.nnodes)) + 1


def _reporters(draft: JobDraft, event: Inspection, key: str) -> tuple[str, ...]:
    """Return the nodes that report it, those that were evicted for it lately included.

    Of devices of their own only new faults count: old ones did not begin together.
    """
    state, policy = draft.state, draft.rules.ladder
    if event.shared:
        # A node of another job, or a free one, sees the same thing.
        seen = {**draft.rules.elsewhere, **reporters_of(state, event, draft.now, policy)}
        seen.setdefault(event.node or "", draft.now)
    else:
        seen = {it.node: it.at for it in state.convicted for alert in it.alerts if alert.key == key}
        window = timedelta(seconds=policy.alerts_window_s)
        doubted = {node: it.since for node, it in state.doubts.items() if it.key == key}
        seen |= {node: since for node, since in doubted.items() if draft.now - since < window}
        seen |= {event.node or "": draft.now}
    return tuple(sorted(seen, key=lambda node: (seen[node], node)))


def note(draft: JobDraft, key: str, thing: str, symptom: str, nodes: tuple[str, ...], text: str) -> None:
    """Open the incident of a shared fault, or add nodes to it."""
    known = draft.state.shared.get(key)
    if known is not None:
        more = tuple(node for node in nodes if node not in known.nodes)
        fault = msgspec.structs.replace(known, nodes=known.nodes + more)
    else:
        fault = SharedFault(
            incident=draft.fresh_id("shared", key),
            thing=thing,
            symptom=symptom,
            since=draft.now,
            nodes=nodes,
            text=text,
        )
        found = draft.emit(
            SharedFaultFound,
            incident=fault.incident,
            thing=thing,
            symptom=symptom,
            nodes=nodes,
            reason=f"{text}; {_whose(nodes)}",
        )
        fault = msgspec.structs.replace(fault, event=found.id)
    draft.update(shared=draft.state.shared | {key: fault})


def _whose(nodes: tuple[str, ...]) -> str:
    if len(nodes) == 1:
        return f"nothing shows that {nodes[0]} is at fault, and not the job"
    return f"{', '.join(nodes)} have it in common, so none of them is at fault"


def _release(draft: JobDraft, key: str) -> None:
    """Take nodes off the blocklist that were evicted for what turned out to be shared; no judgement remains of it."""
    fault = draft.state.shared[key]
    for convict in draft.state.convicted:
        if any(alert.key == key for alert in convict.alerts):
            reason = f"{fault.thing} is at fault: {', '.join(fault.nodes)} report the same"
            draft.emit(EvictionRevoked, node=convict.node, epoch=convict.epoch, reason=reason)
            strike_alerts(draft, convict.node, (alert.event for alert in convict.alerts), reason)
            note_cleared(draft, convict.node, reason)
            draft.update(
                convicted=tuple(it for it in draft.state.convicted if it is not convict),
                evictions=tuple(at for at in draft.state.evictions if at != convict.at),
            )
