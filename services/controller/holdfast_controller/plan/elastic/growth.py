"""A job on fewer nodes than it may have, and nodes that came free since it started.

It is restarted with them of free will once it has trained for so long without them that this cost as much as the
restart would cost this job: its own restarts, and the steps that it would make again with another number of ranks. At
worst the job loses twice the minimum, however soon they leave again. It waits for at least `last_call_s`, as at a
start: nodes that come together join together. A job that has not shown that it can go on with another number of ranks
is not restarted for them; that is reported once.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from holdfast.events import NodesAwaited, NodeStateChanged, Withheld
from holdfast.events.parts.job import Grant
from holdfast.settings.decisions.ladder import LadderPolicy
from holdfast_controller.plan.draft import JobDraft, Rules
from holdfast_controller.plan.elastic import sizes
from holdfast_controller.plan.elastic.free_nodes import FreeNodes
from holdfast_controller.plan.incident.incident import Rung
from holdfast_controller.plan.incident.slow import Price, price_of
from holdfast_controller.plan.job import JobState
from holdfast_controller.plan.loss.lost_steps import can_resume_resized, steps_to_redo_resized
from holdfast_controller.plan.phase import LIVE, Running
from holdfast_controller.plan.transitions import become_starting, fill

FREE = "standby"
"""State of a node in the inventory that waits for a job."""

NO_WAY_TO_GROW = "no_way_to_grow"
"""Mechanism that withholds a restart with more nodes: the job might begin from scratch."""

NEVER_RESIZED = (
    "it keeps no steps that any number of ranks can restore, as far as is known, and has not gone on with another "
    "number before"
)


def may_join(state: JobState) -> bool:
    return isinstance(state.phase, LIVE) and state.purpose == "train" and sizes.may_grow(state)


def node_changed(draft: JobDraft, event: NodeStateChanged) -> None:
    """Note a node that came free, or is not free any more."""
    state, free = draft.state, draft.state.free_nodes
    node = event.node
    if node is None or node in state.nodes or not may_join(state) or (free and free.claim):
        # What was claimed is granted or not: before a grant its nodes are no more free.
        return
    others = tuple(name for name in free.nodes if name != node) if free else ()
    if event.new_state != FREE:
        if free and node in free.nodes:
            draft.update(free_nodes=msgspec.structs.replace(free, nodes=others) if others else None)
    elif free:
        draft.update(free_nodes=msgspec.structs.replace(free, nodes=(*others, node)))
    else:
        draft.update(free_nodes=FreeNodes(nodes=(node,), since=event.at, event=event.id))


def size_with(state: JobState, free: int) -> int:
    """Return the number of nodes that the job could run on if it got `free` more."""
    return sizes.size_for(state.spec, len(state.nodes) + free)


def price(state: JobState, policy: LadderPolicy) -> Price:
    """Return what a restart with another number of ranks costs the job."""
    return price_of(state, steps_to_redo_resized(state), policy)


def due_at(state: JobState, rules: Rules) -> datetime | None:
    """Return when it is worth a restart; None if the job must not be restarted for these nodes."""
    free = state.free_nodes
    if free is None or free.claim or (free.is_told and not can_resume_resized(state)):
        return None
    held, size = len(state.nodes), size_with(state, len(free.nodes))
    if size <= held:
        return None
    waits_s = price(state, rules.ladder).total_s / (1.0 - held / size)
    return free.since + timedelta(seconds=max(waits_s, last_call_s(state, rules)))


def last_call_s(state: JobState, rules: Rules) -> float:
    own_s = state.spec.launch.last_call_s
    return rules.timeouts.last_call_s if own_s is None else own_s


def is_due(state: JobState, now: datetime, hearing_since: datetime, rules: Rules) -> bool:
    """Return True if they have been free for long enough while the controller was connected, and nothing else is under
    way in the job.
    """
    free = state.free_nodes
    phase = state.phase
    if free is None or not isinstance(phase, Running) or phase.finished or state.incident or state.replacement:
        return False
    due = due_at(state, rules)
    return due is not None and now - max(free.since, hearing_since) >= due - free.since


def claim(draft: JobDraft) -> None:
    """Claim the nodes while the job trains on."""
    state, free = draft.state, draft.state.free_nodes
    assert free is not None
    held, size = len(state.nodes), size_with(state, len(free.nodes))
    cost, waited_s = price(state, draft.rules.ladder), (draft.now - free.since).total_seconds()
    reason = f"{', '.join(free.nodes)} came free {waited_s:.0f} s ago, and the job runs on {sizes.in_words(state)}"
    if not can_resume_resized(state):
        draft.update(free_nodes=msgspec.structs.replace(free, is_told=True))
        draft.emit(
            Withheld,
            mechanism=NO_WAY_TO_GROW,
            rung=Rung.REATTEMPT,
            reason=f"{reason}; it is not restarted to take them in, because it might begin from scratch: "
            f"{NEVER_RESIZED}. They join at its next restart",
        )
        return
    fewest = next(more for more in range(1, size - held + 1) if size_with(state, more) > held)
    reason = (
        f"{reason}: to do without them has cost more than a restart, {cost.restart_s:.3g} s and {cost.redo_s:.3g} s "
        "of steps to repeat"
    )
    request = draft.request_nodes_to_grow(reason, most=size - held, fewest=fewest)
    draft.update(free_nodes=msgspec.structs.replace(free, claim=request.id))


def awaited(draft: JobDraft, event: NodesAwaited) -> None:
    """Give the claim up: the nodes are taken by others, or reserved for them."""
    free = draft.state.free_nodes
    if free is not None and free.claim and event.claim == free.claim:
        draft.update(free_nodes=None)
        draft.release((), "the nodes that came free are not free any more", withdraws_claim=True)


def granted(draft: JobDraft, grants: tuple[Grant, ...]) -> None:
    """Start again with the nodes, or give them back if something else happened to the job meanwhile."""
    state, free = draft.state, draft.state.free_nodes
    assert free is not None
    held, size = len(state.nodes), size_with(state, len(grants))
    draft.update(free_nodes=None)
    is_wanted = isinstance(state.phase, Running) and not state.phase.finished and state.incident is None
    joining = grants[: max(0, size - held)] if is_wanted else ()
    if surplus := grants[len(joining) :]:
        draft.release(surplus, "the job has no use for them any more")
    if not joining:
        return
    spec = state.spec.on(size)
    draft.update(spec=spec, **fill(state, (*state.members, *joining)))
    names = ", ".join(grant.node for grant in joining)
    become_starting(draft, f"{names} joined; the job runs on {sizes.in_words(draft.state)}")
