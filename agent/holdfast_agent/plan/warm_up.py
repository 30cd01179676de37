"""Decisions on the warm-up of the node: when it begins, and what it reports. The controller judges the results."""

from __future__ import annotations

import msgspec

from holdfast.engines.checks.warm_up import WarmUpResult
from holdfast.events import DiagnosticResult
from holdfast.orders.node import NodeOrder
from holdfast_agent.plan.actions import StartWarmUp
from holdfast_agent.plan.inputs import WarmUpReported
from holdfast_agent.plan.node_state import Crew
from holdfast_agent.plan.plan_draft import PlanDraft


def begin(draft: PlanDraft, order: NodeOrder) -> None:
    """Test the node for this order, once: while its code is fetched, or its ranks start."""
    placement, state = order.placement, draft.state
    if placement is None or placement.warm_up is None or state.warming >= order.fence:
        return
    draft.update(warming=order.fence)
    draft.actions.append(StartWarmUp(order=order))


def reported(draft: PlanDraft, seen: WarmUpReported) -> None:
    """Report results of the present order's warm-up."""
    order = draft.state.durable.order
    if order is None or order.fence != seen.fence:
        draft.reason = "these results are of an earlier order"
        return
    for result in seen.results:
        _emit(draft, order, result)


def _emit(draft: PlanDraft, order: NodeOrder, result: WarmUpResult) -> None:
    run = f"{order.job}/{order.generation}"
    draft.emit(DiagnosticResult, Crew(order=order), run=run, **msgspec.structs.asdict(result))
