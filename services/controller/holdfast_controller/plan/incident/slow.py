"""The decision about a machine that slows its job down, or about a few of which one does.

A restart costs time as well, and slowness may pass by itself: the machine is replaced once it has cost as much as a
restart would. At worst the job loses twice the minimum, however long the slowness lasts. Evicted machines are tested
beside training (`checks/suspect_test.py`).
"""

from __future__ import annotations

from datetime import datetime, timedelta

from holdfast.events import FailSlowLocated, FailSlowRelieved, Withheld
from holdfast.settings import SETTLED_S_MAX
from holdfast.settings.ladder import LadderPolicy
from holdfast.symptoms import Root, Symptom
from holdfast_controller.plan.draft import JobDraft
from holdfast_controller.plan.incident.incident import Failure, Rung
from holdfast_controller.plan.incident.ladder import FAIL_SLOW
from holdfast_controller.plan.incident.recovery import handle_failure
from holdfast_controller.plan.job import JobState, SlowNode
from holdfast_controller.plan.phase import Running


def fail_slow_located(draft: JobDraft, event: FailSlowLocated) -> None:
    """Note when the named machines will have cost as much as a restart."""
    state = draft.state
    if event.generation != state.generation or event.slowdown <= 1.0:
        return
    policy = draft.rules.ladder
    suspects = _suspects(event, policy)
    if not suspects or not set(suspects) <= set(state.nodes) or len(suspects) >= max(2, len(state.nodes)):
        # Whether to restart without several machines at once, or without all, is for people to decide.
        return
    lost_share, cost_s = 1.0 - 1.0 / event.slowdown, policy.slow_cost_max_s
    if lost_share * SETTLED_S_MAX < cost_s:
        # It would not cost as much within a week.
        return
    known = state.slow if state.slow and state.slow.generation == state.generation else None
    if known and (known.suspects == suspects or known.is_tested > event.is_validated):
        return
    alone = suspects[0] if len(suspects) == 1 else ""
    subject = alone or f"one of {', '.join(suspects)}"
    slow = SlowNode(
        generation=state.generation,
        node=alone,
        one_of=() if alone else suspects,
        is_tested=event.is_validated,
        since=event.at,
        due_at=event.at + timedelta(seconds=cost_s / lost_share),
        text=f"{subject} makes the job slow: "
        f"an iteration takes {event.pace_s:.3g} s instead of {event.healthy_s:.3g} s; {event.summary}",
        event=event.id,
    )
    draft.state = state.update(slow=slow)


def _suspects(event: FailSlowLocated, policy: LadderPolicy) -> tuple[str, ...]:
    """Return the nodes to evict: the one that tests name, both ends of a slow link, or the group that stacks name."""
    if not event.is_validated:
        found = event.one_of if event.confidence >= policy.slow_confidence_min else ()
    elif event.nodes:
        found = event.nodes if len(event.nodes) == 1 else ()
    else:
        found = tuple(sorted({end for link in event.links for end in link}))
    return found if len(found) <= policy.slow_suspects_max else ()


def fail_slow_relieved(draft: JobDraft, event: FailSlowRelieved) -> None:
    if event.is_over and event.generation == draft.state.generation:
        draft.update(slow=None)


def is_due(state: JobState, now: datetime, hearing_since: datetime) -> bool:
    """Return True if they have cost enough, no relief was published since, and no open incident has to end first."""
    slow = state.slow
    if slow is None or now - max(slow.since, hearing_since) < slow.due_at - slow.since:
        return False
    return not _is_present(state, slow) or (isinstance(state.phase, Running) and state.incident is None)


def _is_present(state: JobState, slow: SlowNode) -> bool:
    return slow.generation == state.generation and set(slow.suspects) <= set(state.nodes)


def replace_slow_nodes(draft: JobDraft) -> None:
    """Evict them, and go on from the newest step that all nodes have sealed."""
    state, slow = draft.state, draft.state.slow
    assert slow is not None
    draft.state = state.update(slow=None)
    # The cause is the event that names the machine, not the passing of time.
    draft.cause = slow.event
    if not _is_present(state, slow):
        return
    lasted_s = (draft.now - slow.since).total_seconds()
    reason = f"{slow.text}; in {lasted_s:.0f} s this has cost more than a restart"
    if draft.rules.mechanisms.fail_slow == "observe":
        for node in slow.suspects:
            draft.emit(Withheld, mechanism=FAIL_SLOW, rung=Rung.EVICT, node=node, reason=reason)
        return
    failure = Failure(
        symptom=Symptom.FAIL_SLOW,
        named=Symptom.MFU_DECLINE,
        root=Root.INFRASTRUCTURE,
        generation=state.generation,
        step=state.step,
        text=reason,
        node=slow.node or None,
        group=slow.suspects,
        evidence=(slow.event,),
    )
    handle_failure(draft, failure)
