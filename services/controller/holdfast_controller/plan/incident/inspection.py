"""The decision after an inspection beside training has reported on a node."""

from __future__ import annotations

from holdfast.events import Inspection, Withheld
from holdfast_controller.plan.draft import JobDraft
from holdfast_controller.plan.incident import alerts
from holdfast_controller.plan.incident.incident import Rung
from holdfast_controller.plan.incident.ladder import INSPECTIONS, RungChoice
from holdfast_controller.plan.incident.recovery import handle_failure
from holdfast_controller.plan.incident.rungs import may_evict
from holdfast_controller.plan.phase import Stopping


def inspected(draft: JobDraft, event: Inspection) -> None:
    """Note the alert; evict the node if it is at fault, whether its ranks noticed or not."""
    rules = draft.rules
    if isinstance(draft.state.phase, Stopping) or event.node not in draft.state.nodes:
        return
    draft.state = alerts.with_alert(draft.state, event, draft.now, rules.ladder)
    failure = alerts.failure(draft.state, event, draft.now, rules.ladder)
    if failure is None:
        return
    if rules.mechanisms.inspections == "observe":
        draft.emit(Withheld, mechanism=INSPECTIONS, rung=Rung.EVICT, node=event.node, reason=failure.text)
        return
    choice = RungChoice(rung=Rung.EVICT, reason=failure.text, nodes=(event.node,), mechanism=INSPECTIONS)
    if may_evict(draft, choice):
        handle_failure(draft, failure)
