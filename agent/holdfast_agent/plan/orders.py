"""Decisions on orders and on the code that they name. Orders are fenced by (epoch, generation).

Each order has been signed by the controller, perhaps long ago: who can write on the bus can bring back any of them.
"""

from __future__ import annotations

from datetime import timedelta

from holdfast.events import CodeNotInPlace, OrderRefused
from holdfast.orders.node import NodeOrder
from holdfast_agent.plan.inputs import CodeMissing, CodeReady, OrderSeen
from holdfast_agent.plan.node_state import Crew
from holdfast_agent.plan.plan_draft import PlanDraft
from holdfast_agent.plan.reconcile import code_of, reconcile, stop_ranks
from holdfast_agent.zygote.wire import Fence

SUPERSEDED = "ended by an order that the controller never gave"

CLOCKS_DIFFER_MAX = timedelta(minutes=1)
"""Assumed limit of the difference between this node's clock and the controller's."""


def order_seen(draft: PlanDraft, seen: OrderSeen) -> None:
    """Obey a newer order, refuse an older one."""
    present, order = draft.state.durable.order, seen.order
    if present is not None and order.fence < present.fence == order.supersedes and _is_signed_later(draft, seen):
        _report_older(draft, present.fence, present.job, order, is_obeyed=True)
        _supersede(draft, seen)
        return
    if present is not None and order.fence == present.supersedes:
        draft.reason = f"order {order.fence} was superseded by the present one ({present.fence})"
        return
    if present is None and _is_of_the_past(draft, seen):
        draft.reason = (
            f"order {order.fence} was signed at {seen.signed_at:%Y-%m-%d %H:%M:%S}, before this node began to remember "
            "its orders: the controller has to sign it again"
        )
        _report_older(draft, (0, 0), None, order, is_obeyed=False)
        return
    if present is not None and order.fence <= present.fence:
        known = "known already" if order.fence == present.fence else "older than the present one"
        draft.reason = f"order {order.fence} is {known} ({present.fence})"
        if order.fence < present.fence:
            _report_older(draft, present.fence, present.job, order, is_obeyed=False)
        return
    if draft.state.leaving:
        draft.reason = "the node is leaving"
        return
    draft.remember(order=order, signed_at=seen.signed_at)
    reconcile(draft, seen.in_collective)


def _is_signed_later(draft: PlanDraft, seen: OrderSeen) -> bool:
    """Return False for an order that was signed before the one which it replaces: an old order was published again."""
    before = draft.state.durable.signed_at
    return before is None or seen.signed_at >= before


def _is_of_the_past(draft: PlanDraft, seen: OrderSeen) -> bool:
    """Return True if this order may be older than one that the node has forgotten."""
    began_at, crew = draft.state.durable.began_at, draft.state.crew
    if began_at is None or (crew is not None and crew.order.fence == seen.order.fence):
        return False
    return seen.signed_at < began_at - CLOCKS_DIFFER_MAX


def _report_older(
    draft: PlanDraft, newest: Fence, newest_job: str | None, order: NodeOrder, *, is_obeyed: bool
) -> None:
    if order.job is None:
        return
    newest_epoch, newest_generation = newest
    draft.emit(
        OrderRefused,
        None,
        job=order.job,
        generation=order.generation,
        epoch=order.epoch,
        newest_epoch=newest_epoch,
        newest_generation=newest_generation,
        newest_job=newest_job,
        is_obeyed=is_obeyed,
    )


def _supersede(draft: PlanDraft, seen: OrderSeen) -> None:
    """Replace an order that the controller never gave by its own, whose ranks may have run: report these as lost.

    That is the outage of a control plane whose past was put back, and no failure of the node.
    """
    order = seen.order
    draft.reason = f"order {order.fence} takes the place of one that the controller never gave"
    draft.remember(order=order, signed_at=seen.signed_at)
    if order.placement is None:
        reconcile(draft)
        return
    _give_up_start(draft, order, SUPERSEDED, is_outage=True)


def _give_up_start(draft: PlanDraft, order: NodeOrder, reason: str, *, is_outage: bool = False) -> None:
    draft.report_not_started(order, reason, agent_was_away=is_outage)
    if draft.state.crew is not None and draft.state.zygote_ready and draft.state.stop is None:
        stop_ranks(draft)


def code_ready(draft: PlanDraft, seen: CodeReady) -> None:
    """Note the code versions in place and start the ranks that waited for one."""
    fetching = None if draft.state.fetching in seen.code else draft.state.fetching
    draft.update(code=seen.code, fetching=fetching)
    if not draft.state.leaving:
        reconcile(draft, seen.in_collective)


def code_missing(draft: PlanDraft, seen: CodeMissing) -> None:
    """Report the ranks that waited for this code as lost."""
    if draft.state.fetching == seen.code:
        draft.update(fetching=None)
    durable, order = draft.state.durable, draft.state.durable.order
    if order is None or code_of(order) != seen.code or durable.settled == order.fence:
        return
    if durable.crew is not None and durable.crew.order.fence == order.fence:
        return
    version = seen.code.rpartition("/")[2]
    draft.emit(CodeNotInPlace, Crew(order=order), version=version, detail=seen.reason)
    _give_up_start(draft, order, f"the code {seen.code} could not be fetched: {seen.reason}")
