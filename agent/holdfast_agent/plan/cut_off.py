"""The decision for a node whose agent has no connection to the bus.

Its ranks train on, and its events wait in the spool. The agent ends the ranks only after a lease without both the bus
and a step: by then the controller may have moved the job to other nodes, and ranks that make no step are of no use.
"""

from __future__ import annotations

from holdfast_agent.plan.plan_draft import PlanDraft
from holdfast_agent.plan.reconcile import condemn


def end_ranks_after_lease(draft: PlanDraft, cut_off_s: float | None) -> None:
    """End the ranks if the cut lasts `lease_s` and no rank completed a step for as long. None: connected."""
    lease_s, progress_at = draft.timeouts.lease_s, draft.state.progress_at
    if cut_off_s is None or cut_off_s < lease_s:
        return
    if progress_at is None or (draft.now - progress_at).total_seconds() >= lease_s:
        condemn(
            draft,
            f"ended by its agent: no contact with the bus for {cut_off_s:.0f} s "
            f"and no step for {lease_s:.0f} s or more",
        )
