"""The conclusion of an incident from all evidence so far. The name of the incident follows the newest one.

A job may train again 0.2 s after a kill, and the kernel's line about it may be reported seconds later. So the incident
that was closed last is concluded again as well, for a minute.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.events import IncidentDiagnosed
from holdfast.symptoms import Symptom
from holdfast_controller.plan.draft import JobDraft
from holdfast_controller.plan.evidence.joined import NEAR, joined_cause
from holdfast_controller.plan.incident.incident import Cause, Proof
from holdfast_controller.plan.record.noting import note_cause


def conclude(draft: JobDraft, cause: Cause | None) -> None:
    """Note the cause of a failure in the open incident, and publish it if it is another conclusion than before."""
    incident = draft.state.incident
    if cause is None or incident is None:
        return
    if cause.accused:
        nodes = incident.accused.get(cause.rule, frozenset()) | cause.accused
        draft.update_incident(accused=incident.accused | {cause.rule: nodes})
    if not _is_news(cause, incident.cause):
        return
    draft.update_incident(cause=cause, **_name(cause))
    _publish(draft, cause, incident.id)


def conclude_closed(draft: JobDraft, node: str) -> None:
    """Conclude again the incident that was closed last, since an alert reported more about a node whose rank ended."""
    closed = draft.state.closed
    if closed is None:
        return
    if draft.now - closed.closed_at > NEAR:
        draft.update(closed=None)
        return
    # What is reported while a later failure of the node is open is about that one.
    if not any(one.node == node for one in closed.exits) or any(one.node == node for one in draft.state.exits):
        return
    past = draft.state.update(exits=closed.exits, incident=None)
    alerts_act = draft.rules.mechanisms.inspections == "act"
    cause = joined_cause(past, closed.exits[0].generation, alerts_act=alerts_act)
    if cause is not None and _is_news(cause, closed.incident.cause):
        incident = msgspec.structs.replace(closed.incident, cause=cause, **_name(cause))
        draft.update(closed=msgspec.structs.replace(closed, incident=incident))
        _publish(draft, cause, incident.id)


def _publish(draft: JobDraft, cause: Cause, incident: str) -> None:
    note_cause(draft, cause)
    draft.emit(
        IncidentDiagnosed,
        incident=incident,
        symptom=str(cause.symptom),
        table_one=cause.symptom.row,
        root=cause.root.value,
        node=cause.node,
        rank=cause.rank,
        generation=cause.generation,
        proof=cause.proof.value,
        confidence=cause.confidence,
        rule=cause.rule,
        advice=cause.advice,
        lines=cause.lines,
        evidence=cause.events,
        reason=cause.reason,
    )


def _name(cause: Cause) -> dict[str, Any]:
    # For an error of the script the cause adds nothing to the symptom.
    return {} if cause.symptom is Symptom.USER_CODE_ERROR else {"named": str(cause.symptom)}


def _is_news(cause: Cause, known: Cause | None) -> bool:
    """Return True for another conclusion, by more evidence about the same generation, or by a first proof."""
    if known is None:
        return True
    is_proof = cause.proof is Proof.PROVEN and known.proof is not Proof.PROVEN
    return cause.conclusion != known.conclusion and (cause.generation == known.generation or is_proof)
