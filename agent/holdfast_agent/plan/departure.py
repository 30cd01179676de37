"""Decisions for an agent that is shut down on purpose: stop the ranks, then leave."""

from __future__ import annotations

from holdfast.events import NodeDeparted
from holdfast_agent.plan.actions import EndZygote
from holdfast_agent.plan.plan_draft import PlanDraft
from holdfast_agent.plan.reconcile import stop_ranks


def shutdown_requested(draft: PlanDraft) -> None:
    """Stop the ranks, or leave at once if none runs."""
    if draft.state.leaving:
        return
    draft.update(leaving=True)
    if draft.state.stop is not None:
        return
    if draft.state.zygote_ready and draft.state.crew is not None:
        stop_ranks(draft)
    else:
        depart(draft)


def depart(draft: PlanDraft) -> None:
    """Report the node as departed and end the zygote, once."""
    if not draft.state.departed:
        draft.update(departed=True)
        draft.emit(NodeDeparted, None, instance=draft.state.instance)
        draft.actions.append(EndZygote())
