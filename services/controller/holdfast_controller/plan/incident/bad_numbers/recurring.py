"""Bad numbers that come back in another incident: what the job remembers, and when machines are compared for it.

The way back of an incident passes the steps that were bad, with the same data and code. So data and code are seldom the
cause of numbers that come back hours later, and a machine that computes wrongly now and then often is.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from holdfast_controller.plan.doubt.doubt_records import PastBadNumbers
from holdfast_controller.plan.draft import JobDraft
from holdfast_controller.plan.incident.incident import Incident, Rung

REMEMBERED_MAX = 64
"""Incidents of bad numbers that a job remembers; the newest."""

REPLAYED_FROM = 3
"""Number of the incident from which machines are compared for it."""

EXPLAINED_BY = frozenset({Rung.EVICT, Rung.ROLLBACK})
"""Rungs after which the numbers of an incident are explained, until others come."""


def note(draft: JobDraft, incident: Incident) -> None:
    """Remember the bad numbers of an incident that is over, or forget all if it ended with a cause."""
    if any(taken.rung in EXPLAINED_BY for taken in incident.taken):
        draft.update(past_bad_numbers=())
        return
    newest = incident.bad_steps[-1]
    nodes = {known.node for known in incident.bad_steps}
    past = PastBadNumbers(
        at=draft.now,
        step=newest.step,
        node=newest.node if len(nodes) == 1 else None,
        was_replayed=bool(incident.replayed),
    )
    draft.update(past_bad_numbers=(*lately(draft), past)[-REMEMBERED_MAX:])


def lately(draft: JobDraft) -> tuple[PastBadNumbers, ...]:
    """Return those that are recent enough to have the same cause as new ones."""
    half_life = timedelta(days=draft.rules.record.half_life_days)
    return tuple(past for past in draft.state.past_bad_numbers if draft.now - past.at < half_life)


def calls_for_replay(past: Sequence[PastBadNumbers]) -> bool:
    """Return True for the third incident, and for twice as many as when the last replay found nothing.

    A replay costs as much as two incidents, which end with a restart each. So it comes once they have cost that. If it
    finds nothing, the next one is less likely to.
    """
    replayed = [number for number, one in enumerate(past, start=1) if one.was_replayed]
    return len(past) + 1 >= (2 * replayed[-1] if replayed else REPLAYED_FROM)


def describe(draft: JobDraft) -> str:
    """Return a sentence about the earlier incidents; "" if there was none lately."""
    past = lately(draft)
    if not past:
        return ""
    since_s = (draft.now - past[0].at).total_seconds()
    since = f"{since_s:.0f} s" if since_s < 600 else f"{since_s / 3600:.1f} h"
    times = "once" if len(past) == 1 else f"{len(past)} times"
    alone = {one.node for one in past}
    where = f", each time on {past[0].node} alone" if len(alone) == 1 and past[0].node else ""
    return f"the job had bad numbers {times} within {since} before{where}, and nothing explains them"
