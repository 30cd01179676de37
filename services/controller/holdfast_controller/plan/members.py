"""Nodes that join a job and leave it: granted, awaited, lost, departed."""

from __future__ import annotations

from holdfast.events import (
    AnyEvent,
    DeadlinePassed,
    NodeDeparted,
    NodeLost,
    NodesAwaited,
    NodesGranted,
    NodeStateChanged,
    Suspension,
)
from holdfast.events.parts.job import Grant
from holdfast.symptoms import Root, Symptom
from holdfast_controller.plan.doubt import replacement, shared_faults
from holdfast_controller.plan.draft import JobDraft
from holdfast_controller.plan.elastic import growth, sizes
from holdfast_controller.plan.incident.incident import Failure
from holdfast_controller.plan.incident.recovery import handle_failure
from holdfast_controller.plan.job import JobState
from holdfast_controller.plan.phase import Claiming, Stopping
from holdfast_controller.plan.transitions import become_starting, end_when_gone, fill


def nodes_granted(draft: JobDraft, event: NodesGranted) -> None:
    """Fill the vacancies with the granted nodes, and give back those that are not needed."""
    state = draft.state
    new = usable(state, event)
    # The inventory has them as this job's, also after their agents have started again.
    if gone := tuple(grant for grant in event.grants if not _holds_already(state, grant) and is_gone(state, grant)):
        draft.release(gone, "gone before the grant arrived")
    if state.replacement is not None and event.claim == state.replacement.claim:
        replacement.granted(draft, _take_back(draft, new))
        return
    if state.free_nodes is not None and event.claim == state.free_nodes.claim:
        growth.granted(draft, _take_back(draft, new))
        return
    missing = state.vacancies
    if isinstance(state.phase, Claiming):
        # A member granted again was lost and is back: the event of its loss is still on its way.
        again = {grant.node for grant in new}
        unplaced = iter(new)
        members = (member if member and member.node not in again else next(unplaced, None) for member in state.members)
        draft.update(**fill(state, tuple(members)))
        new = list(unplaced)
    if new:
        draft.release(tuple(new), "more nodes were granted than are needed")
    if not isinstance(state.phase, Claiming):
        return
    names = ", ".join(grant.node for grant in event.grants)
    if draft.state.vacancies:
        is_answer = event.claim == state.claim
        if is_answer and _goes_on_with_fewer(draft, f"{names} joined" if names else "no other node is free"):
            return
        # Nodes that an earlier claim brought are not requested again by the present one.
        if event.claim == state.claim or draft.state.vacancies < missing:
            draft.request_nodes("fewer nodes were granted than are missing")
        return
    count = state.spec.nnodes
    _start(draft, f"{names} joined" + (f"; all {count} nodes are present" if count > 1 else ""))


def _take_back(draft: JobDraft, new: list[Grant]) -> tuple[Grant, ...]:
    """Hold members by their new grants, and return the other grants.

    Such a member was lost and is back: the event of its loss is still on its way, and its agent obeys no order of the
    grant before.
    """
    state = draft.state
    again = {grant.node: grant for grant in new if grant.node in state.nodes}
    if again:
        draft.update(**fill(state, tuple(again.get(it.node, it) if it else None for it in state.members)))
    return tuple(grant for grant in new if grant.node not in again)


def _goes_on_with_fewer(draft: JobDraft, reason: str) -> bool:
    """Start an elastic job on the nodes at hand; return False if it is none, or they are too few."""
    held = tuple(member for member in draft.state.members if member)
    size = sizes.size_for(draft.state.spec, len(held)) if draft.state.spec.is_elastic else 0
    if not size:
        return False
    if held[size:]:
        draft.release(held[size:], f"the mesh {draft.state.spec.mesh} has no use for {len(held)} nodes")
    newcomers = draft.state.newcomers & {member.node for member in held[:size]}
    draft.update(spec=draft.state.spec.on(size), members=held[:size], newcomers=newcomers)
    _start(draft, f"{reason}; the job runs on {sizes.in_words(draft.state)}")
    return True


def _start(draft: JobDraft, reason: str) -> None:
    assert isinstance(draft.state.phase, Claiming)
    become_starting(draft, "; ".join(filter(None, (draft.state.phase.restart_reason, reason))))


def unanswered(draft: JobDraft, _: DeadlinePassed) -> None:
    """Go on without the standby service, which has not answered."""
    draft.update_phase(deadline=None)
    draft.release((), "the standby service has not answered", withdraws_claim=True)
    _goes_on_with_fewer(draft, "it is not known whether other nodes are free")


def usable(state: JobState, event: NodesGranted) -> list[Grant]:
    return [grant for grant in event.grants if not _holds_already(state, grant) and not is_gone(state, grant)]


def is_gone(state: JobState, grant: Grant) -> bool:
    """Return True if the node was lost or shut down before its grant arrived."""
    is_departed = grant.instance is not None and state.departed.get(grant.node) == grant.instance
    return is_departed or grant.epoch <= state.lost_before_granted.get(grant.node, -1)


def concerns(state: JobState, event: AnyEvent) -> bool:
    """Return True if an event that names no job concerns this one: it holds the node, or may be granted it."""
    if isinstance(event, NodeStateChanged):
        return growth.may_join(state) or event.node in state.absent
    if event.node in state.nodes:
        return True
    is_claiming = isinstance(state.phase, Claiming) or state.replacement is not None
    return isinstance(event, NodeDeparted) and is_claiming


def nodes_awaited(draft: JobDraft, event: NodesAwaited) -> None:
    """Suspend the nodes at hand: there are not enough free ones."""
    replacement.awaited(draft, event)
    growth.awaited(draft, event)
    state = draft.state
    if not isinstance(state.phase, Claiming) or event.claim != state.claim or not state.nodes:
        return
    if state.is_suspended or state.generation == 0:
        return
    draft.emit(Suspension, reason=_why_suspended(state, event))
    draft.update_phase(is_suspended=True)
    draft.order_idle()


def _why_suspended(state: JobState, event: NodesAwaited) -> str:
    counts = f"{event.wanted} node{' is' if event.wanted == 1 else 's are'} needed, {event.available} are free"
    if event.at_least is None:
        return f"{counts}: waiting for more"
    if event.available < event.at_least:
        return f"{counts}: waiting for at least {event.at_least}"
    return f"{counts}: waiting {event.last_call_s:g} s for more, then the job goes on with {sizes.in_words(state)}"


def node_gone(draft: JobDraft, event: NodeLost | NodeDeparted) -> None:
    if failure := departure(draft, event):
        handle_failure(draft, failure)


def departure(draft: JobDraft, event: NodeLost | NodeDeparted) -> Failure | None:
    """Return the failure that a node's loss is to the job; None if the job did not hold it, or is stopping anyway."""
    state = draft.state
    member = state.member(event.node)
    if isinstance(event, NodeLost) and event.epoch > 0 and (member is None or member.epoch < event.epoch):
        # The event of its loss has overtaken the grant.
        draft.update(lost_before_granted=state.lost_before_granted | {event.node: event.epoch})
    if isinstance(event, NodeDeparted) and event.node in state.returned and event.at < state.returned[event.node]:
        return None
    if isinstance(event, NodeDeparted) and event.node:
        draft.update(departed=state.departed | {event.node: event.instance})
    if member is None or (isinstance(event, NodeLost) and _is_of_earlier_grant(event, member)):
        return None
    if isinstance(state.phase, Stopping):
        end_when_gone(draft, {member.node})
        return None
    if isinstance(event, NodeLost):
        shared_faults.lost(draft, event, member)
        since = ", since the services started" if event.is_unheard else ""
        symptom, text = Symptom.NODE_LOST, f"no heartbeat from {event.node} for {event.silent_s:.1f} s{since}"
    else:
        symptom, text = Symptom.NODE_DEPARTED, f"the agent of {event.node} was shut down"
    draft.update(absent=state.absent | {member.node: 0})
    return Failure(
        symptom=symptom,
        root=Root.INFRASTRUCTURE if symptom is Symptom.NODE_LOST else Root.UNKNOWN,
        generation=state.generation,
        step=state.step,
        text=text,
        node=event.node,
        may_be_outage=isinstance(event, NodeLost) and event.is_unheard,
    )


def _is_of_earlier_grant(event: NodeLost, member: Grant) -> bool:
    """Return True if the node was lost before the job got it. A free node may never have been granted: its epoch is 0,
    as in events from before they had one."""
    return event.job is None or 0 < event.epoch < member.epoch


def _holds_already(state: JobState, grant: Grant) -> bool:
    member = state.member(grant.node)
    return member is not None and member.epoch >= grant.epoch
