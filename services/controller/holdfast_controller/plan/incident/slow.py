"""The decision about a machine that slows its job down, or about a few of which one does.

A restart costs time as well, and slowness may pass by itself. A machine that tests have named is replaced at once if a
restart costs this job less than what such slowness costs on average until it passes (GREYHOUND, section 3). Otherwise a
machine is replaced once it has cost as much as a restart, since the first slow iteration (GREYHOUND's Algorithm 1): at
worst the job then loses twice the minimum, however long the slowness lasts. A job that has shown no way to resume would
lose everything: its slowness is only reported. Evicted machines are tested beside training (`checks/suspect_test.py`).

Before tests or stacks name a machine, hints may: if one node of the slow job has a reason to be slow, such as heat, it
is the suspect (ByteRobust §8.1.1). In a job that is slow from its start, it is the one that tests found slow last, here
or in another job. Tests overrule either, and get the time for that. They do not overrule that foreign processes of a
node use its processors.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import NamedTuple

import msgspec

from holdfast.events import FailSlowLocated, FailSlowOnset, FailSlowRelieved, MfuDeclined, Withheld
from holdfast.settings import SETTLED_S_MAX
from holdfast.settings.decisions.ladder import LadderPolicy
from holdfast.symptoms import Root, Symptom
from holdfast_controller.plan.doubt import hints
from holdfast_controller.plan.doubt.replacement import replace_when_possible, withdraw
from holdfast_controller.plan.draft import JobDraft
from holdfast_controller.plan.incident.incident import Failure, Rung
from holdfast_controller.plan.incident.rung_choice import FAIL_SLOW
from holdfast_controller.plan.job import JobState, Slowdown, SlowNode
from holdfast_controller.plan.loss.lost_steps import can_resume, steps_to_redo
from holdfast_controller.plan.phase import Running
from holdfast_controller.plan.record.finding import proven_slowness

NO_WAY_TO_RESUME = "no_way_to_resume"
"""Mechanism that withholds a restart that can be avoided: the job would start from scratch."""

TESTS_ANSWER = timedelta(seconds=60)
"""Time from the onset in which tests, and rounds of stacks after them, name a machine or find none slow. Until then
nothing follows from a hint alone, however cheap a restart is."""

RELIEF_S = 10.0
"""Time from the first slow iteration, and after an outage of the bus, in which relief may be on its way."""

FROM_THE_START, FROM_THE_START_STEPS = timedelta(minutes=5), 20
"""A job that gets slow within this time of its start, or within as many steps, is slow from the start."""

NEVER_RESUMED = "the job has made no checkpoint that is known, and no restart of it went on from an earlier step"


def slowed_down(draft: JobDraft, event: FailSlowOnset | MfuDeclined) -> None:
    """Note that the job is slow; if hints show why, suspect that node."""
    if event.generation != draft.state.generation:
        return
    if isinstance(event, MfuDeclined):
        left, pace = event.share_left, f"a step takes {event.step_s:.3g} s"
    else:
        left = event.healthy_s / event.after_s if event.after_s > 0 else 1.0
        pace = f"an iteration takes {event.after_s:.3g} s instead of {event.healthy_s:.3g} s"
    if left < 1.0:
        known = draft.state.slowdown
        is_same = known is not None and known.generation == event.generation and isinstance(event, MfuDeclined)
        since = known.since if known is not None and is_same else _began_at(draft.state, event)
        slowdown = Slowdown(
            generation=draft.state.generation, since=since, lost_share=1.0 - left, text=pace, event=event.id
        )
        draft.update(slowdown=slowdown)
        suspect_hinted(draft)


def _began_at(state: JobState, event: FailSlowOnset | MfuDeclined) -> datetime:
    """Return when the first slow iteration began: not before the job did. A decline little by little has no such
    beginning.
    """
    if isinstance(event, MfuDeclined) or not isinstance(state.phase, Running):
        return event.at
    trained_s = max(0.0, (event.at - state.phase.since).total_seconds())
    return event.at - timedelta(seconds=min(event.detected_after * event.after_s, trained_s))


def inspected(draft: JobDraft) -> None:
    """Note that a node of a slow job was inspected. All hints are compared at the next look at the time, once: of ten
    thousand nodes all may report heat within a second."""
    slowdown = draft.state.slowdown
    if slowdown is not None and slowdown.hinted_at is None:
        draft.update(slowdown=msgspec.structs.replace(slowdown, hinted_at=draft.now))


def suspect_hinted(draft: JobDraft) -> None:
    """Suspect the one node of a slow job that has a reason to be slow."""
    if draft.state.slowdown and draft.state.hints_due_at:
        draft.update(slowdown=msgspec.structs.replace(draft.state.slowdown, hinted_at=None))
    state, policy, slowdown = draft.state, draft.rules.ladder, draft.state.slowdown
    is_present = slowdown is not None and slowdown.generation == state.generation
    if slowdown is None or not is_present or (state.slow and state.slow.generation == state.generation):
        return
    if (
        draft.rules.mechanisms.inspections == "observe"
        or len(state.nodes) < 2
        or not _is_worth(slowdown, state, policy)
    ):
        return
    proven = hints.without_processors(state, state.nodes, slowdown.since)
    hinted = dict(proven)
    if not slowdown.is_refuted:
        hinted |= hints.reasons_to_be_slow(state, state.nodes, slowdown.since, draft.now, policy)
    reasons = {node: hint.text for node, hint in hinted.items()} or ({} if slowdown.is_refuted else _slow_before(draft))
    if len(reasons) != 1:
        return
    ((node, reason),) = reasons.items()
    slow = SlowNode(
        generation=state.generation,
        node=node,
        is_tested=False,
        # Tests follow the onset, and overrule a hint: they get their time first.
        since=draft.now,
        tests_until=None if node in proven else draft.now + TESTS_ANSWER,
        lost_share=slowdown.lost_share,
        text=f"{node} makes the job slow: {slowdown.text}; {reason}",
        event=slowdown.event,
    )
    draft.update(slow=slow)


def _slow_before(draft: JobDraft) -> dict[str, str]:
    """Return the member that tests found slow last, in this job or another one, with what was found.

    Only if the job has been slow since it started: a member that has trained in it at the usual pace is not the reason.
    If the member is as fast as others by now, its next test clears it.
    """
    state, slowdown = draft.state, draft.state.slowdown
    if draft.rules.mechanisms.record == "observe" or slowdown is None or not isinstance(state.phase, Running):
        return {}
    steps = timedelta(seconds=FROM_THE_START_STEPS * (state.step_s or 0.0))
    if slowdown.since - state.phase.since > max(FROM_THE_START, steps):
        return {}
    known = (record for node in state.nodes if (record := draft.records.get(node)) is not None)
    found = ((proven_slowness(record, draft.now, draft.rules.record), record.node) for record in known)
    proofs = sorted((mark.at, node, mark.text) for mark, node in found if mark is not None)
    return {node: f"tests of it found before: {text}" for _, node, text in proofs[-1:]}


def _is_worth(slowdown: Slowdown, state: JobState, policy: LadderPolicy) -> bool:
    """Return True if it can cost as much as a restart within a week."""
    return slowdown.lost_share * SETTLED_S_MAX >= price(state, policy).total_s


def fail_slow_located(draft: JobDraft, event: FailSlowLocated) -> None:
    """Note the machines that were named as slow, if a restart without them can be the smaller loss."""
    state = draft.state
    if event.generation != state.generation or event.slowdown <= 1.0:
        return
    policy = draft.rules.ladder
    suspects = _suspects(event, policy)
    if event.is_validated and not event.nodes and not event.links:
        _refute(draft)
        return
    if one := _narrowed(draft, event, suspects):
        suspects = one
    if len(suspects) > max(policy.slow_suspects_max, int(policy.slow_group_share_max * state.spec.nnodes)):
        return
    if not suspects or not set(suspects) <= state.nodes.as_set or len(suspects) >= max(2, len(state.nodes)):
        # Whether to restart without several machines at once, or without all, is for people to decide.
        return
    lost_share = 1.0 - 1.0 / event.slowdown
    if lost_share * SETTLED_S_MAX < price(state, policy).total_s:
        # It would not cost as much within a week.
        return
    known = state.slow if state.slow and state.slow.generation == state.generation else None
    if known and (known.suspects == suspects or known.is_tested > event.is_validated):
        if known.is_tested < event.is_validated:
            since, text = _slow_since(state, event), f"{known.text}; {event.summary}"
            since = min(known.since, since)
            tested = msgspec.structs.replace(known, is_tested=True, tests_until=None, since=since, text=text)
            draft.update(slow=tested)
        return
    alone = suspects[0] if len(suspects) == 1 else ""
    subject = alone or f"one of {', '.join(suspects)}"
    slow = SlowNode(
        generation=state.generation,
        node=alone,
        one_of=() if alone else suspects,
        is_tested=event.is_validated,
        since=_slow_since(state, event),
        lost_share=lost_share,
        text=f"{subject} makes the job slow: "
        f"an iteration takes {event.pace_s:.3g} s instead of {event.healthy_s:.3g} s; {event.summary}",
        event=event.id,
    )
    draft.state = state.update(slow=slow)


def _slow_since(state: JobState, event: FailSlowLocated) -> datetime:
    """Return since when the named nodes cost time: since the job got slow, unless tests found that this had passed."""
    slowdown = state.slowdown
    if slowdown is None or slowdown.generation != state.generation or slowdown.is_refuted:
        return event.at
    return min(event.at, slowdown.since)


def _refute(draft: JobDraft) -> None:
    """Drop a suspicion that only a hint raised: tests found no slow machine."""
    slow, slowdown = draft.state.slow, draft.state.slowdown
    if slow is not None and slow.node and not slow.is_tested:
        since = slowdown.since if slowdown is not None else slow.since
        if slow.node not in hints.without_processors(draft.state, (slow.node,), since):
            draft.update(slow=None)
    if slowdown is not None:
        draft.update(slowdown=msgspec.structs.replace(slowdown, is_refuted=True))


def _narrowed(draft: JobDraft, event: FailSlowLocated, suspects: tuple[str, ...]) -> tuple[str, ...]:
    """Return the one suspect with a reason to be slow; () if not exactly one has. Tests have answered hints."""
    if draft.rules.mechanisms.inspections == "observe":
        return ()
    since = draft.state.slowdown.since if draft.state.slowdown else event.at
    found = hints.without_processors(draft.state, suspects, since)
    if not event.is_validated:
        found |= hints.reasons_to_be_slow(draft.state, suspects, since, draft.now, draft.rules.ladder)
    return tuple(found) if len(found) == 1 else ()


def _suspects(event: FailSlowLocated, policy: LadderPolicy) -> tuple[str, ...]:
    """Return the nodes to evict: the one that tests name, both ends of a slow link, or the group that stacks name."""
    if not event.is_validated:
        return event.one_of if event.confidence >= policy.slow_confidence_min else ()
    if event.nodes:
        return event.nodes if len(event.nodes) == 1 else ()
    return tuple(sorted({end for link in event.links for end in link}))


def fail_slow_relieved(draft: JobDraft, event: FailSlowRelieved) -> None:
    """Note that the job is fast again, and withdraw the request for a node in place of the slow one."""
    if event.is_over and event.generation == draft.state.generation:
        draft.update(slow=None, slowdown=None)
        replacement = draft.state.replacement
        if replacement is not None and replacement.failure.symptom is Symptom.FAIL_SLOW:
            withdraw(draft, replacement.leaving, "the job is at its healthy pace again")


class Price(NamedTuple):
    """Price of a restart: seconds of training that it would cost the job."""

    restart_s: float
    """Seconds from the order to the first step."""
    redo_s: float
    """Steps that would be trained once more."""

    @property
    def total_s(self) -> float:
        return self.restart_s + self.redo_s


def price(state: JobState, policy: LadderPolicy) -> Price:
    """Return what a restart costs by this job's own restarts, and the steps since one that it can resume from."""
    return price_of(state, steps_to_redo(state), policy)


def price_of(state: JobState, redone_steps: int, policy: LadderPolicy) -> Price:
    return Price(restart_s=_restart_s(state, policy), redo_s=redone_steps * (state.step_s or 0.0))


def _restart_s(state: JobState, policy: LadderPolicy) -> float:
    """Return how long the job's last restart took. Before the first one its start is the best estimate, and too high
    rather than too low: what is imported, compiled and read from a disk then is there at a restart.
    """
    if state.restart_s is not None:
        return state.restart_s
    return policy.slow_cost_max_s if state.start_s is None else min(state.start_s, policy.slow_cost_max_s)


def due_at(state: JobState, policy: LadderPolicy) -> datetime | None:
    """Return when a restart is the smaller loss; None if the job must not be restarted for the slowness."""
    slow = state.slow
    if slow is None or state.replacement is not None or (slow.is_told and not can_resume(state)):
        return None
    # Until then the slowness has cost less than a restart.
    patience_s = price(state, policy).total_s / slow.lost_share
    if slow.is_tested and patience_s < policy.slow_lasts_s:
        patience_s = min(patience_s, RELIEF_S)
    due = slow.since + timedelta(seconds=patience_s)
    return due if slow.tests_until is None else max(due, slow.tests_until)


def is_due(state: JobState, now: datetime, hearing_since: datetime, policy: LadderPolicy) -> bool:
    """Return True if a restart is due, no relief was published since, and no open incident has to end first."""
    slow, due = state.slow, due_at(state, policy)
    if slow is None or due is None or now - max(slow.since, hearing_since) < due - slow.since:
        return False
    return not _is_present(state, slow) or (isinstance(state.phase, Running) and state.incident is None)


def _is_present(state: JobState, slow: SlowNode) -> bool:
    return slow.generation == state.generation and set(slow.suspects) <= state.nodes.as_set


def replace_slow_nodes(draft: JobDraft) -> None:
    """Replace them, and go on from the newest step that all nodes have sealed."""
    state, slow = draft.state, draft.state.slow
    assert slow is not None
    if not _is_present(state, slow):
        draft.update(slow=None)
        return
    costs, lasted_s = price(state, draft.rules.ladder), (draft.now - slow.since).total_seconds()
    cost_s = lasted_s * slow.lost_share
    reason = f"{slow.text}; in {lasted_s:.0f} s this has cost {cost_s:.0f} s"
    if cost_s < costs.total_s and slow.is_tested:
        mean_s = draft.rules.ladder.slow_lasts_s
        reason = f"{slow.text}; slowness lasts {mean_s:.0f} s on average, which costs {mean_s * slow.lost_share:.0f} s"
    if not can_resume(state):
        draft.update(slow=msgspec.structs.replace(slow, is_told=True))
        _withhold(draft, slow, NO_WAY_TO_RESUME, f"{reason}, but a restart would begin from scratch: {NEVER_RESUMED}")
        return
    draft.update(slow=None)
    reason = f"{reason}, more than a restart: {costs.restart_s:.3g} s, and {costs.redo_s:.3g} s of steps to repeat"
    if draft.rules.mechanisms.fail_slow == "observe":
        _withhold(draft, slow, FAIL_SLOW, reason)
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
    replace_when_possible(draft, failure, FAIL_SLOW)


def _withhold(draft: JobDraft, slow: SlowNode, mechanism: str, reason: str) -> None:
    for node in slow.suspects:
        draft.emit(Withheld, mechanism=mechanism, rung=Rung.EVICT, node=node, reason=reason)
