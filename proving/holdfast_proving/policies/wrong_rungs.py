"""Wrong policies, systematically: for each pair of rungs one that takes either where the ladder asks for the other."""

from __future__ import annotations

from itertools import combinations

import msgspec

from holdfast.engines.checks.suites import suite_for
from holdfast_controller.plan.draft import JobDraft
from holdfast_controller.plan.incident.incident import Failure, Rung
from holdfast_controller.plan.incident.rung_choice import RungChoice
from holdfast_controller.plan.phase import (
    TRANSITIONS,
    Checking,
    Claiming,
    JobPhase,
    Replaying,
    Starting,
    Stopping,
    Waiting,
)
from holdfast_controller.plan.replay_scope import can_replay
from holdfast_proving.policies.mutation import taking
from holdfast_proving.policies.policy import Policy

LEADS_TO: dict[Rung, type[JobPhase]] = {
    Rung.REATTEMPT: Starting,
    Rung.WAIT: Waiting,
    Rung.ROLLBACK: Starting,
    Rung.REPLACE: Claiming,
    Rung.CHECKS: Checking,
    Rung.REPLAY: Replaying,
    Rung.EVICT: Claiming,
    Rung.STOP: Stopping,
}


def _swapped(one: Rung, other: Rung) -> Policy:
    def change(draft: JobDraft, failure: Failure, choice: RungChoice) -> RungChoice:
        if choice.rung not in (one, other):
            return choice
        return _as(other if choice.rung is one else one, draft, failure, choice)

    return Policy(name=f"swaps_{one.value}_{other.value}", about=f"{one} for {other}", patches=(taking(change),))


def _as(rung: Rung, draft: JobDraft, failure: Failure, choice: RungChoice) -> RungChoice:
    """Return a choice of this rung, about the same nodes if it needs some; the old one if the job cannot take it."""
    code = draft.state.code
    is_possible = LEADS_TO[rung] in TRANSITIONS[type(draft.state.phase)]
    if rung is Rung.REPLAY:
        is_possible = is_possible and can_replay(draft.state, draft.rules.ladder)
    elif rung is Rung.ROLLBACK:
        is_possible = is_possible and (code.pending or code.fallback) is not None
    if not is_possible:
        return choice
    changed = msgspec.structs.replace(choice, rung=rung)
    if rung in (Rung.EVICT, Rung.REPLACE) and not choice.nodes:
        reporter = failure.node if failure.node in draft.state.nodes else None
        return msgspec.structs.replace(changed, nodes=(reporter or draft.state.nodes[0],))
    if rung is Rung.CHECKS and not choice.suite:
        return msgspec.structs.replace(changed, suite=suite_for(failure.symptom_name))
    return changed


SWAPPED: tuple[Policy, ...] = tuple(_swapped(one, other) for one, other in combinations(Rung, 2))
