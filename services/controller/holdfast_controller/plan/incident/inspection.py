"""The decision after an inspection beside training, or the telemetry of ranks, has reported on a node."""

from __future__ import annotations

from holdfast.events import Inspection, TelemetryAnomaly, Withheld
from holdfast_controller.plan.doubt import doubts, hints, shared_faults
from holdfast_controller.plan.draft import JobDraft
from holdfast_controller.plan.evidence.conclusion import conclude_closed
from holdfast_controller.plan.incident import alerts, rank_exit
from holdfast_controller.plan.incident.incident import Rung
from holdfast_controller.plan.incident.rung_choice import INSPECTIONS
from holdfast_controller.plan.phase import Stopping


def inspected(draft: JobDraft, event: Inspection) -> None:
    """Note the alert. A node that it proves to be at fault leaves the job, whether its ranks noticed or not."""
    rules = draft.rules
    if isinstance(draft.state.phase, Stopping):
        return
    if event.node not in draft.state.nodes:
        shared_faults.reported_elsewhere(draft, event)
        doubts.drop_refuted(draft)
        return
    draft.state = alerts.with_alert(draft.state, event, draft.now, rules.ladder)
    shared_faults.compare(draft, event)
    doubts.drop_refuted(draft)
    if event.state == "alert":
        assert event.node is not None
        conclude_closed(draft, event.node)
        rank_exit.reconsider(draft, event.node)
        if event.node not in draft.state.nodes:
            return
    failure = alerts.failure(draft.state, event, draft.now, rules.ladder)
    if failure is None:
        return
    if rules.mechanisms.inspections == "observe":
        draft.emit(Withheld, mechanism=INSPECTIONS, rung=Rung.EVICT, node=event.node, reason=failure.text)
        return
    doubts.doubt(draft, failure, event)


def telemetry_differs(draft: JobDraft, event: TelemetryAnomaly) -> None:
    """Note the anomaly as a hint. The job trains on; a failure of the node starts tests."""
    if event.generation == draft.state.generation and not isinstance(draft.state.phase, Stopping):
        draft.state = hints.with_anomaly(draft.state, event, draft.now, draft.rules.ladder)
