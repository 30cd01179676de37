"""What the controller does about a failure: opens or continues an incident, weighs the evidence, takes a rung."""

from __future__ import annotations

import msgspec

from holdfast.config import LadderPolicy
from holdfast.events import Eviction, EvictionRevoked, IncidentOpened, Reattempt
from holdfast.ids import derived_id
from holdfast_controller.draft import Draft
from holdfast_controller.ladder import Failure, Rung, blame, choose, is_exhausted
from holdfast_controller.state import Ending, Evicted, Incident, JobPhase, Symptom
from holdfast_controller.updates import can_roll_back, is_of_present_code, roll_back


def failed(draft: Draft, failure: Failure, policy: LadderPolicy) -> None:
    """A failure of the generation that should run now: open an incident or go on with the open one, and act."""
    incident = draft.state.incident
    if incident is None:
        incident = Incident(
            id=derived_id(draft.cause, "incident"),
            opened_at=draft.now,
            symptom=failure.symptom,
            failed_step=failure.step,
            summary=failure.text,
        )
        if (settled := draft.state.settled) is not None:
            # What comes again in the same place is the same failure, though its incident was over.
            error = settled.user_error
            incident = msgspec.structs.replace(
                incident,
                user_error=error if error and not error.on_first_step else None,
                shown=settled.shown,
                evicted=settled.evicted,
            )
        draft.state = draft.state.update(incident=incident)
        draft.say(
            IncidentOpened,
            symptom=failure.symptom,
            failed_step=failure.step,
            node=failure.node,
            rank=failure.rank,
            reason=failure.text,
        )
    rung, reason = _weigh(draft, failure, policy)
    if rung in (Rung.REATTEMPT, Rung.EVICT) and is_exhausted(incident, policy):
        rung, reason = Rung.STOP, f"{failure.text}; gave up after {incident.attempts} restarts within one incident"
    _act(draft, failure, rung, reason)


def learned_late(draft: Draft, failure: Failure, policy: LadderPolicy) -> None:
    """Evidence of a generation already given up: it may tell who was at fault, and that going on is no use."""
    rung, reason = _weigh(draft, failure, policy)
    held = failure.node in draft.state.nodes
    if rung in (Rung.STOP, Rung.ROLLBACK) or (rung is Rung.EVICT and held):
        _act(draft, failure, rung, reason)


def _weigh(draft: Draft, failure: Failure, policy: LadderPolicy) -> tuple[Rung, str]:
    assert draft.state.incident is not None
    incident = blame(draft.state.incident, failure, frozenset(draft.state.nodes))
    state, generation = draft.state, failure.generation
    rung, reason = choose(incident, failure, policy, can_roll_back=can_roll_back(state, generation))
    if failure.user_error and is_of_present_code(state, generation):
        incident = msgspec.structs.replace(incident, user_error=failure.user_error)
    if failure.spoiled:
        others = tuple(known for known in incident.spoiled if known.generation != failure.generation)
        incident = msgspec.structs.replace(incident, spoiled=(*others, failure.spoiled))
    if failure.step > incident.failed_step:
        incident = msgspec.structs.replace(incident, failed_step=failure.step)
    if incident.symptom is Symptom.PEER_LOST and failure.symptom is not Symptom.PEER_LOST:
        incident = msgspec.structs.replace(incident, symptom=failure.symptom, summary=failure.text)
    draft.state = draft.state.update(incident=incident)
    return rung, reason


def _act(draft: Draft, failure: Failure, rung: Rung, reason: str) -> None:
    incident = draft.state.incident
    assert incident is not None
    if rung is Rung.STOP:
        for node, evicted in sorted(incident.evicted.items()):
            if evicted.trait == failure.trait:
                draft.say(EvictionRevoked, node=node, epoch=evicted.epoch, reason=reason)
        error = failure.error
        ending = Ending(
            phase=JobPhase.FAILED,
            reason=reason,
            exit_code=error.exit_code if error else 1,
            traceback=error.traceback if error else "",
        )
        draft.end(ending)
        return
    if rung is Rung.ROLLBACK and roll_back(draft, reason):
        draft.await_("ranks_started", draft.timeouts.start_s)
        return
    if rung in (Rung.REATTEMPT, Rung.ROLLBACK):
        draft.say(Reattempt, attempt=incident.attempts + 1, node=failure.node, reason=reason)
        draft.order_start(f"restart in place: {reason}")
        draft.await_("ranks_started", draft.timeouts.start_s)
        return
    member = draft.state.member(failure.node)
    assert member is not None
    if rung is Rung.EVICT:
        draft.say(Eviction, node=member.node, epoch=member.epoch, blocked_for_s=draft.timeouts.block_s, reason=reason)
        if failure.trait:
            gone = {**incident.evicted, member.node: Evicted(epoch=member.epoch, trait=failure.trait)}
            draft.state = draft.state.update(incident=msgspec.structs.replace(incident, evicted=gone))
    else:
        draft.release((member,), reason)
    draft.vacate(member.node)
    draft.claim(f"{member.node} left the job: {reason}")
