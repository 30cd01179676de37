"""Reconciliation: move from the ranks that a node has towards the ranks that its order asks for, step by step."""

from __future__ import annotations

from holdfast.orders.node import NodeOrder
from holdfast_agent.plan import warm_up
from holdfast_agent.plan.actions import FetchCode, Fork, OpenStore, Stop
from holdfast_agent.plan.node_state import Crew
from holdfast_agent.plan.plan_draft import PlanDraft


def reconcile(draft: PlanDraft, in_collective: tuple[int, ...] = ()) -> None:
    """Take the next step unless one is in progress. A failure kills ranks `in_collective`: they cannot obey SIGTERM."""
    state, order, crew = draft.state, draft.state.durable.order, draft.state.crew
    if order is None or state.durable.settled == order.fence:
        return
    if crew is not None and crew.order.fence == order.fence:
        return
    warms_up = order.placement is not None and order.placement.warm_up is not None
    if warms_up and crew is None and state.zygote_ready and state.stop is None:
        # While code is fetched. Beside ranks that end, its processes would end with theirs.
        _open_store(draft, order)
        warm_up.begin(draft, order)
    # Before anything is stopped: the present ranks go on meanwhile.
    if _lacks_code(draft, order):
        return
    if not state.zygote_ready or state.stop is not None:
        draft.reason = "waits for the zygote" if state.stop is None else "waits for the ranks to end"
        return
    _open_store(draft, order)
    if crew is None and order.placement is not None:
        _fork(draft, order)
        return
    draft.reason = f"order {order.fence} replaces the present ranks" if crew else "the order asks for no ranks"
    failed = order.incident is not None or (crew is not None and any(code != 0 for code in crew.ended.values()))
    stop_ranks(draft, at_once=in_collective if failed else (), is_urgent=failed)


def stop_ranks(draft: PlanDraft, at_once: tuple[int, ...] = (), *, is_urgent: bool = False) -> None:
    """Stop all ranks; those in `at_once` without a grace period, others with a short one if it `is_urgent`."""
    number = draft.state.stops + 1
    draft.update(stops=number, stop=number, stop_began=draft.now)
    draft.actions.append(Stop(number=number, at_once=at_once, is_urgent=is_urgent))


def condemn(draft: PlanDraft, reason: str) -> None:
    """Stop all ranks without an order, and report them as lost for this reason."""
    draft.reason = reason
    draft.update(condemned=reason)
    stop_ranks(draft, is_urgent=True)


def code_of(order: NodeOrder | None) -> str | None:
    """Return the code that an order's ranks run as `job/version`; None if they run the script in its directory."""
    placement = order.placement if order is not None else None
    if placement is None or placement.code_version is None:
        return None
    return f"{placement.job.name}/{placement.code_version}"


def _lacks_code(draft: PlanDraft, order: NodeOrder) -> bool:
    """Return True if the order's code is not in place, and request it."""
    code = code_of(order)
    if code is None or code in draft.state.code:
        return False
    draft.reason = f"order {order.fence} waits for the code {code}"
    if draft.state.fetching != code:
        draft.update(fetching=code)
        draft.actions.append(FetchCode(order=order))
    return True


def _open_store(draft: PlanDraft, order: NodeOrder) -> None:
    hosts_store = order.placement is not None and order.placement.node_rank == 0
    if hosts_store and draft.state.store != order.fence:
        draft.update(store=order.fence)
        draft.actions.append(OpenStore(order=order))


def _fork(draft: PlanDraft, order: NodeOrder) -> None:
    draft.reason = f"order {order.fence} asks for ranks"
    draft.remember(crew=Crew(order=order))
    draft.update(progress=(), progress_at=draft.now, progress_emitted_at=None)
    draft.actions.append(Fork(order=order))
