"""What follows from a machine that makes its job slow. Pure.

A restart costs time as well, and what is slow may pass by itself: the machine is replaced once it has cost as much as
a restart would. So at worst twice what was needed is lost, however long it lasts.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from holdfast.events import FailSlowLocated, FailSlowRelieved, Withheld
from holdfast.symptoms import Root, TableOne
from holdfast_controller.draft import Draft
from holdfast_controller.incident import Failure, Rung, Symptom
from holdfast_controller.ladder import FAIL_SLOW
from holdfast_controller.recovery import Rules, failed
from holdfast_controller.state import JobPhase, JobState, SlowNode


def located(draft: Draft, event: FailSlowLocated, rules: Rules) -> None:
    """Tests name one machine of the job: note when it will have cost enough."""
    state = draft.state
    if event.generation != state.generation or not event.is_validated or event.slowdown <= 1.0:
        return
    if len(event.nodes) != 1 or event.nodes[0] not in state.nodes:
        # A restart without several machines at once, or none, is for people to decide.
        return
    node, lost_share = event.nodes[0], 1.0 - 1.0 / event.slowdown
    if state.slow and (state.slow.generation, state.slow.node) == (state.generation, node):
        return
    cost_s = rules.ladder.slow_cost_max_s
    slow = SlowNode(
        generation=state.generation,
        node=node,
        since=event.at,
        due_at=event.at + timedelta(seconds=cost_s / lost_share),
        text=f"{node} makes the job slow: an iteration takes {event.pace_s:.3g} s, {event.healthy_s:.3g} s before; "
        f"{event.summary}",
        event=event.id,
    )
    draft.state = state.update(slow=slow)


def relieved(draft: Draft, event: FailSlowRelieved) -> None:
    """The job is as fast as it was."""
    if event.is_over and event.generation == draft.state.generation:
        draft.state = draft.state.update(slow=None)


def is_due(state: JobState, now: datetime, hearing_since: datetime) -> bool:
    """Whether the machine has cost enough; that it is well again would have been heard."""
    slow = state.slow
    return slow is not None and now - max(slow.since, hearing_since) >= slow.due_at - slow.since


def due(draft: Draft, rules: Rules) -> None:
    """Replace the machine, and go on from the newest step that all have sealed."""
    state, slow = draft.state, draft.state.slow
    assert slow is not None
    draft.state = state.update(slow=None)
    # What names the machine is what leads to this; time only said that it is enough.
    draft.cause = slow.event
    is_present = slow.generation == state.generation and slow.node in state.nodes
    if not is_present or state.phase is not JobPhase.RUNNING or state.incident is not None:
        return
    lasted_s = (draft.now - slow.since).total_seconds()
    reason = f"{slow.text}; for {lasted_s:.0f} s, which has cost more than a restart"
    if rules.mechanisms.fail_slow == "observe":
        draft.say(Withheld, mechanism=FAIL_SLOW, rung=Rung.EVICT, node=slow.node, reason=reason)
        return
    failure = Failure(
        symptom=Symptom.SLOW,
        named=TableOne.MFU_DECLINE,
        root=Root.INFRASTRUCTURE,
        generation=state.generation,
        step=state.step,
        text=reason,
        node=slow.node,
        evidence=(slow.event,),
    )
    failed(draft, failure, rules)
