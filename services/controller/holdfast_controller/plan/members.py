"""Nodes come to a job and leave it: handed over, awaited, lost, and those that refuse what holds for them. Pure."""

from __future__ import annotations

from holdfast.events import NodeDeparted, NodeLost, NodesAwaited, NodesGranted, OrderRefused, Suspension
from holdfast.events.parts.job import Grant
from holdfast_controller.plan.draft import Draft
from holdfast_controller.plan.incident.incident import Failure, Symptom
from holdfast_controller.plan.incident.recovery import Rules, failed
from holdfast_controller.plan.job import JobPhase, JobState
from holdfast_controller.plan.orders import standing_orders


def granted(draft: Draft, event: NodesGranted) -> None:
    """Nodes are handed over: they fill the vacancies, and what is too many goes back."""
    state = draft.state
    new = [
        grant
        for grant in event.grants
        if not _holds_already(state, grant) and grant.epoch > state.lost_before_granted.get(grant.node, -1)
    ]
    missing = state.vacancies
    if state.phase is JobPhase.CLAIMING:
        # A node that is granted anew has left its old place: it was lost and is back, and the word of its loss is
        # still on its way.
        again = {grant.node for grant in new}
        waiting = iter(new)
        draft.state = state.update(
            members=tuple(
                member if member and member.node not in again else next(waiting, None) for member in state.members
            )
        )
        new = list(waiting)
    if new:
        draft.release(tuple(new), "more nodes were granted than are needed")
    if draft.state.phase is not JobPhase.CLAIMING:
        return
    if draft.state.vacancies:
        # What an earlier claim brought after all, the present one must not wait for.
        if event.claim == state.claim or draft.state.vacancies < missing:
            draft.claim("fewer nodes were granted than are missing by now")
        return
    draft.state = draft.state.update(claim=None)
    names = ", ".join(grant.node for grant in event.grants)
    draft.order_start(f"{names} joined; all {state.spec.nnodes} nodes are there")
    draft.await_("ranks_started", draft.timeouts.start_s)


def awaited(draft: Draft, event: NodesAwaited) -> None:
    """There are not enough nodes: who is there waits without ranks."""
    state = draft.state
    if state.phase is not JobPhase.CLAIMING or event.claim != state.claim or not state.nodes:
        return
    if state.suspended or state.generation == 0:
        return
    draft.say(Suspension, reason=f"{event.wanted} nodes are needed, {event.available} are there: waiting for more")
    draft.order_idle(suspended=True)


def gone(draft: Draft, event: NodeLost | NodeDeparted, rules: Rules) -> None:
    """A node is lost, or its agent was shut down."""
    state = draft.state
    member = state.member(event.node)
    if isinstance(event, NodeLost) and event.epoch > 0 and (member is None or member.epoch < event.epoch):
        # The word of its loss has overtaken the grant that hands it over.
        lost = state.lost_before_granted | {event.node: event.epoch}
        draft.state = state = state.update(lost_before_granted=lost)
    if member is None or (isinstance(event, NodeLost) and 0 < event.epoch < member.epoch):
        return
    if state.phase is JobPhase.STOPPING:
        draft.state = state.update(gone=state.gone | {event.node})
        draft.close_when_gone()
        return
    if isinstance(event, NodeLost):
        symptom, text = Symptom.NODE_LOST, f"nothing was heard of {event.node} for {event.silent_s:.1f} s"
    else:
        symptom, text = Symptom.NODE_DEPARTED, f"the agent of {event.node} was shut down"
    failed(
        draft, Failure(symptom=symptom, generation=state.generation, step=state.step, text=text, node=event.node), rules
    )


def refused(draft: Draft, event: OrderRefused) -> None:
    """A node refuses what holds for it: what it obeyed last was never ordered, and is superseded by name."""
    for order in standing_orders(draft.state):
        if order.node == event.node and order.fence == (event.epoch, event.generation):
            draft.supersede(order, (event.newest_epoch, event.newest_generation))


def _holds_already(state: JobState, grant: Grant) -> bool:
    member = state.member(grant.node)
    return member is not None and member.epoch >= grant.epoch
