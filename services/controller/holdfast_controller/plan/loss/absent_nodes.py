"""Nodes that have left a job with the only copies of its steps: it waits for them, for a limited time.

The other nodes ask the vaults of all nodes that were part of the job for its steps. So the job starts again where it is
as soon as one of these nodes is back, and again with the next if that one did not suffice.
Once none is away, and after the limit, ranks that refuse to start from scratch end the job.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.events import NodeStateChanged
from holdfast.settings.decisions.ladder import LadderPolicy
from holdfast_controller.plan.draft import JobDraft
from holdfast_controller.plan.incident import rungs
from holdfast_controller.plan.incident.classify import STEPS_ABSENT
from holdfast_controller.plan.incident.incident import Failure, Incident, Rung
from holdfast_controller.plan.incident.rung_choice import RungChoice
from holdfast_controller.plan.job import JobState
from holdfast_controller.plan.phase import Waiting

BACK = frozenset({"registered", "checked", "standby", "active"})
"""States in the inventory of a node whose agent and vault answer."""

NAMED_MAX = 4


def choose(state: JobState, incident: Incident, failure: Failure, policy: LadderPolicy) -> RungChoice:
    """Return what to do about ranks that find no steps. No code and no present machine is at fault."""
    meanwhile = [node for node, generation in state.absent.items() if generation >= failure.generation]
    if meanwhile:
        return RungChoice(
            rung=Rung.REATTEMPT, reason=f"{failure.text}; {_are_back(meanwhile)} since these ranks looked"
        )
    away = tuple(node for node, generation in state.absent.items() if not generation)
    if not away or not policy.absent_wait_s:
        earlier = incident.user_error
        if earlier and earlier.generation != failure.generation and earlier.signature.startswith(STEPS_ABSENT):
            reason = f"{failure.text}; the nodes that are there have none, and no other can be waited for"
            return RungChoice(rung=Rung.STOP, reason=reason)
        return RungChoice(rung=Rung.REATTEMPT, reason=failure.text)
    which = "it" if len(away) == 1 else "one of them"
    reason = (
        f"waiting up to {policy.absent_wait_s:g} s for {_names(away)}, which left with steps of the job in memory: "
        f"bring {which} back, or stop the job. Its present nodes and the disk have none"
    )
    return RungChoice(rung=Rung.WAIT, reason=reason, nodes=away, pause_s=policy.absent_wait_s)


def node_changed(draft: JobDraft, event: NodeStateChanged) -> None:
    """Note that an absent node is back, and start the ranks again if they wait for it."""
    state, node = draft.state, event.node or ""
    if state.absent.get(node) != 0 or event.new_state not in BACK:
        return
    draft.update(absent=state.absent | {node: state.generation})
    if isinstance(state.phase, Waiting) and node in state.phase.nodes:
        rungs.pause_over(draft, _are_back([node]))


def pause_over(draft: JobDraft) -> None:
    """Start the ranks again after a pause. Nodes that it was for are not waited for again."""
    phase = draft.state.phase
    assert isinstance(phase, Waiting)
    if not phase.nodes:
        rungs.pause_over(draft)
        return
    left = {node: generation for node, generation in draft.state.absent.items() if node not in phase.nodes}
    draft.update(absent=left)
    waited_s = phase.deadline.waited_s(draft.now)
    rungs.pause_over(draft, f"{_names(phase.nodes)} did not come back within {waited_s:.0f} s")


def _are_back(nodes: list[str]) -> str:
    return f"{_names(nodes)} {'is' if len(nodes) == 1 else 'are'} back"


def _names(nodes: Iterable[str]) -> str:
    named = list(nodes)
    more = f" and {len(named) - NAMED_MAX} more" if len(named) > NAMED_MAX else ""
    return ", ".join(named[:NAMED_MAX]) + more
