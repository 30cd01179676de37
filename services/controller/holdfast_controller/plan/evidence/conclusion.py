"""The conclusion of an incident from all evidence so far. The name of the incident follows the newest one."""

from __future__ import annotations

from holdfast.events import IncidentDiagnosed
from holdfast.symptoms import Symptom
from holdfast_controller.plan.draft import JobDraft
from holdfast_controller.plan.incident.incident import Cause, Proof


def conclude(draft: JobDraft, cause: Cause | None) -> None:
    """Note the cause of a failure in the open incident, and publish it if it is another conclusion than before."""
    incident = draft.state.incident
    if cause is None or incident is None:
        return
    if cause.accused:
        nodes = incident.accused.get(cause.rule, frozenset()) | cause.accused
        draft.update_incident(accused=incident.accused | {cause.rule: nodes})
    known = incident.cause
    if known is not None and (cause.conclusion == known.conclusion or not _replaces(cause, known)):
        return
    draft.update_incident(cause=cause, **_name(cause))
    draft.emit(
        IncidentDiagnosed,
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


def _name(cause: Cause) -> dict[str, object]:
    # For an error of the script the cause adds nothing to the symptom.
    return {} if cause.symptom is Symptom.USER_CODE_ERROR else {"named": str(cause.symptom)}


def _replaces(cause: Cause, known: Cause) -> bool:
    """Return True for more evidence about the same generation, or a proof where there was none."""
    return cause.generation == known.generation or (cause.proof is Proof.PROVEN and known.proof is not Proof.PROVEN)
