"""Generations that a restored database forgot: nodes that obeyed their orders report it, and the job counts on."""

from __future__ import annotations

from datetime import datetime

from holdfast.events import BusWentBack, OrderRefused
from holdfast.symptoms import Root, Symptom
from holdfast_controller.plan.draft import JobDraft
from holdfast_controller.plan.incident.incident import Failure
from holdfast_controller.plan.incident.recovery import restart_unblamed
from holdfast_controller.plan.job import JobState
from holdfast_controller.plan.orders import orders_in_force, superseding
from holdfast_controller.plan.phase import LIVE

GENERATIONS_FORGOTTEN_MAX = 10_000
"""Generations that a restored database may have forgotten, above what the age of the job allows: clocks are set back.
An order further ahead is forged: no job restarts that often between two backups.
"""


def generations_max(state: JobState, now: datetime) -> int:
    """Return a number above those of all generations that the job can have had by now, in any life of the database.

    No job starts one a second from its submission on.
    """
    return max(0, int((now - state.submitted_at).total_seconds()))


def order_refused(draft: JobDraft, event: OrderRefused) -> None:
    """Repeat the order that a node refuses: the newer one that it obeyed was never given by the controller.

    If a restored database forgot the newer one, its generation has a place in the job's checkpoints: the next
    generation must be above it.
    """
    _count_forgotten(draft, event)
    if event.is_obeyed:
        return
    for order in orders_in_force(draft.state, event.node):
        if order.fence == (event.epoch, event.generation):
            draft.order([superseding(order, (event.newest_epoch, event.newest_generation))])


def bus_went_back(draft: JobDraft, event: BusWentBack) -> None:
    """Start the job again if its node obeyed orders that the database forgot.

    The node publishes this first, and then what the bus lost: that may be of generations which the database forgot, and
    of the present one, which ended before the database went back. Nothing follows from it.
    """
    assert event.node is not None
    known = {node: at for node, at in draft.state.returned.items() if node in draft.state.nodes}
    draft.update(returned=known | {event.node: event.at})
    before = draft.state.generation
    if not _count_forgotten(draft, event) or not isinstance(draft.state.phase, LIVE):
        return
    text = f"the database went back to generation {before}, and {event.node} had obeyed {event.newest_generation}"
    restart_unblamed(
        draft,
        Failure(
            symptom=Symptom.UNKNOWN,
            root=Root.INFRASTRUCTURE,
            generation=before,
            step=draft.state.step,
            text=text,
            evidence=(event.id,),
        ),
    )


def _count_forgotten(draft: JobDraft, event: OrderRefused | BusWentBack) -> bool:
    """Count on from above the generations that the database forgot; return False if the event shows none.

    The node may not know the newest of them, so the number is above all that the job can have had.
    """
    state, newest = draft.state, event.newest_generation
    possible = generations_max(state, draft.now)
    newest_possible = max(state.next_generation, possible) + GENERATIONS_FORGOTTEN_MAX
    if event.newest_job != state.job or not state.generation < newest < newest_possible:
        return False
    draft.state = state.counting_from(max(newest, possible))
    return True
