"""Hints about a job's nodes. A hint proves nothing: it stops no job and evicts no node. It shows where to look first.

Once a failure has stopped the job, tests cost only their own time: if a hint concerns the node that failed, the nodes
are tested at the first failure (the error check of TRANSOM §III). Nodes that pass have answered their hints. If the job
gets slow, the one node with a reason to be slow is its suspect (ByteRobust §8.1.1: heat, and a falling MFU).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

import msgspec

from holdfast.events import HangFound, TelemetryAnomaly
from holdfast.settings.decisions.ladder import LadderPolicy
from holdfast.symptoms import Symptom, row_of
from holdfast_controller.plan.incident import alerts
from holdfast_controller.plan.incident.classify import FIRST_HAND_OF_NODE
from holdfast_controller.plan.incident.incident import Alert, Failure
from holdfast_controller.plan.job import JobState

TELEMETRY = "telemetry"
"""Name of the check under which anomalies of telemetry are noted."""

DEVICES = "devices"
"""Name of the check under which devices are noted that lack an activity most others of the job have."""

ANOMALY = timedelta(minutes=15)
"""Time for which an anomaly counts. The analyzer repeats one that lasts (`[telemetry] again_after_s`)."""

SLOWNESS = timedelta(minutes=30)
"""Maximum time between a hint and the slowness that it explains. The usual pace contains the effect of an older one."""

BY_CHANCE_MAX = 2
"""Nodes that may have the same hint without a cause in common, however small the job."""

_TESTED = frozenset(
    map(row_of, (Symptom.GPU_MEMORY_ERROR, Symptom.GPU_UNAVAILABLE, Symptom.MFU_DECLINE, Symptom.DISK_FAULT))
)
"""Rows of Table 1 that stop-time checks can confirm. Lost packets are congestion more often, and Xids of applications
the script's own, so they are no reason to test a machine."""


def with_anomaly(state: JobState, event: TelemetryAnomaly, now: datetime, policy: LadderPolicy) -> JobState:
    """Return the job with an anomaly noted as a hint about its nodes. One of many nodes is a trait of the job."""
    named = (event.first_node,) if event.by == "errors" else event.nodes
    texts = {node: f"{TELEMETRY} of {node}: {event.reason}" for node in named if node is not None}
    return _with_hints(state, TELEMETRY, event.by, texts, event, now, policy)


def with_idle_devices(state: JobState, event: HangFound, now: datetime, policy: LadderPolicy) -> JobState:
    """Return the job with idle devices noted as hints about their nodes, each with its first."""
    texts: dict[str, str] = {}
    for device in event.idle:
        texts.setdefault(device.node, device.text)
    measures = " ".join(dict.fromkeys(device.measure for device in event.idle))
    return _with_hints(state, DEVICES, measures, texts, event, now, policy)


def of_nodes(
    state: JobState, nodes: Iterable[str], now: datetime, policy: LadderPolicy
) -> dict[str, tuple[Alert, ...]]:
    """Return the hints about nodes that no test has answered, the newest last; nodes without any are left out."""
    found = {
        node: [alert for alert in alerts.suspicions(state, node, now, policy) if _is_hint(alert, now)]
        for node in nodes
        if node in state.alerts
    }
    # Counted once, and only if needed: all nodes of a large job may have hints.
    seen = _nodes_with(state) if any(found.values()) else Counter()
    standing_out = {
        node: tuple(alert for alert in own if _stands_out(state, seen[_trait(alert)], policy))
        for node, own in found.items()
    }
    return {node: own for node, own in standing_out.items() if own}


def about(state: JobState, failure: Failure, now: datetime, policy: LadderPolicy) -> tuple[Alert, ...]:
    """Return the hints about the nodes that a failure may come from; a hang that names no node may come from any."""
    if failure.symptom not in FIRST_HAND_OF_NODE:
        return ()
    nodes: Iterable[str] = failure.group or ((failure.node,) if failure.node else ())
    if failure.symptom is Symptom.HANG and not nodes:
        nodes = state.nodes
    return tuple(hint for own in of_nodes(state, nodes, now, policy).values() for hint in own)


def without_common(state: JobState, known: Iterable[Alert], now: datetime, policy: LadderPolicy) -> tuple[Alert, ...]:
    """Return alerts without the hints that many nodes have, such as all on a busy machine: they do not show why one of
    the nodes failed."""
    known = tuple(known)
    keys = {alert.key for alert in known if alert.confidence == "hint"}
    seen = Counter[str]()
    for node in state.alerts if keys else ():
        of_node = alerts.suspicions(state, node, now, policy) if node in state.nodes else ()
        seen.update({alert.key for alert in of_node if alert.confidence == "hint"} & keys)
    return tuple(it for it in known if it.confidence != "hint" or _stands_out(state, seen[it.key], policy))


def reasons_to_be_slow(
    state: JobState, nodes: Iterable[str], since: datetime, now: datetime, policy: LadderPolicy
) -> dict[str, Alert]:
    """Return the nodes that have a reason to be slow since then, each with the newest hint: heat, lost PCIe lanes."""
    found = {
        node: [hint for hint in own if _explains_slowness(hint, since)]
        for node, own in of_nodes(state, nodes, now, policy).items()
    }
    return {node: known[-1] for node, known in found.items() if known}


def without_processors(state: JobState, nodes: Iterable[str], since: datetime) -> dict[str, Alert]:
    """Return the nodes whose ranks wait for processors that foreign processes of the same node use, with the newest
    alert. Tests of a slow job take waits off where nodes share a machine, so they do not refute it."""
    found = {node: [it for it in state.alerts.get(node, ()) if _is_of_strangers(it, since)] for node in nodes}
    return {node: known[-1] for node, known in found.items() if known}


def answered(state: JobState, nodes: Iterable[str]) -> JobState:
    """Return the job with the hints about these nodes answered: the nodes have passed tests."""
    known = {node: state.alerts[node] for node in nodes if node in state.alerts}
    return state.update(alerts=state.alerts | {node: tuple(map(_answered, own)) for node, own in known.items()})


def _with_hints(
    state: JobState,
    check: str,
    device: str,
    texts: Mapping[str, str],
    event: TelemetryAnomaly | HangFound,
    now: datetime,
    policy: LadderPolicy,
) -> JobState:
    """Return the job with a hint about each node that `texts` has. The same of many nodes is a trait of the job."""
    nodes = [node for node in texts if node in state.nodes]
    if len(nodes) > _together_max(state, policy) or len(nodes) == len(state.nodes) > 1:
        return state
    alert = Alert(at=event.at, check=check, device=device, symptom="", confidence="hint", text="", event=event.id)
    noted = {node: _noted(state, node, msgspec.structs.replace(alert, text=texts[node]), now, policy) for node in nodes}
    return state.update(alerts=state.alerts | noted)


def _noted(state: JobState, node: str, alert: Alert, now: datetime, policy: LadderPolicy) -> tuple[Alert, ...]:
    known = alerts.suspicions(state, node, now, policy)
    others = tuple(other for other in known if other.check != alert.check)
    return (*others, alert)[-alerts.KEPT_PER_NODE_MAX :]


def _is_hint(alert: Alert, now: datetime) -> bool:
    if alert.confidence != "hint" or alert.is_answered:
        return False
    return now - alert.at < ANOMALY if alert.check in (TELEMETRY, DEVICES) else row_of(alert.symptom) in _TESTED


def _stands_out(state: JobState, nodes: int, policy: LadderPolicy) -> bool:
    """Return True if the same hint comes from too few nodes to have a common cause."""
    return nodes <= _together_max(state, policy) and (nodes < len(state.nodes) or nodes == 1)


def _nodes_with(state: JobState) -> Counter[tuple[str, bool]]:
    """Return by how many nodes each hint is had."""
    of_nodes = ({_trait(alert) for alert in known if alert.confidence == "hint"} for known in state.alerts.values())
    return Counter(trait for traits in of_nodes for trait in traits)


def _trait(alert: Alert) -> tuple[str, bool]:
    return alert.key, alert.stands


def _together_max(state: JobState, policy: LadderPolicy) -> int:
    return max(BY_CHANCE_MAX, int(policy.evictions_share_max * state.spec.nnodes))


def _explains_slowness(alert: Alert, since: datetime) -> bool:
    return row_of(alert.symptom) == Symptom.MFU_DECLINE.row and alert.stands and abs(alert.at - since) < SLOWNESS


def _is_of_strangers(alert: Alert, since: datetime) -> bool:
    is_known = alert.confidence != "hint" and row_of(alert.symptom) == Symptom.CPU_OVERLOAD.row
    return is_known and alert.stands and abs(alert.at - since) < SLOWNESS


def _answered(alert: Alert) -> Alert:
    return msgspec.structs.replace(alert, is_answered=True) if alert.confidence == "hint" else alert
