"""Wrong policies about groups of which one machine blocks the others."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.events import HangFound
from holdfast_controller.plan.checks import suspect_test
from holdfast_controller.plan.checks.suspect_verdict import SuspectVerdict
from holdfast_controller.plan.doubt import group_guesses
from holdfast_controller.plan.draft import JobDraft
from holdfast_controller.plan.incident import breaker
from holdfast_controller.plan.incident.incident import Failure, Rung
from holdfast_controller.plan.incident.rung_choice import LadderOptions, RungChoice
from holdfast_proving.policies.mutation import HANDLERS, Function, always, choosing, taking
from holdfast_proving.policies.policy import Insight, Patch, Policy


def _sees_no_group(original: Function, insight: Insight) -> Function:
    def found(draft: JobDraft, event: HangFound) -> None:
        original(draft, msgspec.structs.replace(event, group=()))

    return found


def _complement(draft: JobDraft, failure: Failure, choice: RungChoice) -> RungChoice:
    if choice.rung is not Rung.EVICT or not choice.one_of:
        return choice
    others = tuple(node for node in draft.state.nodes if node not in choice.nodes)
    return msgspec.structs.replace(choice, nodes=others[: len(choice.nodes)])


def _clears_nobody(original: Function, insight: Insight) -> Function:
    def judge(*args: Any) -> SuspectVerdict:
        verdict: SuspectVerdict = original(*args)
        in_doubt = (*verdict.in_doubt, *verdict.cleared)
        return msgspec.structs.replace(verdict, cleared=(), in_doubt=in_doubt)

    return judge


def _by_machine(original: Function, insight: Insight) -> Function:
    return lambda nodes, now: original(nodes, now) * len(nodes)


def _asks_nobody(choice: RungChoice, failure: Failure, options: LadderOptions) -> RungChoice:
    return msgspec.structs.replace(choice, asks_first=False)


GROUPS: tuple[Policy, ...] = (
    Policy(
        name="evicts_no_group",
        about="no group is convincing",
        patches=(Patch(HANDLERS, "HangFound", _sees_no_group),),
    ),
    Policy(name="evicts_the_complement", about="evicts nodes that wait for a group", patches=(taking(_complement),)),
    Policy(
        name="forgets_the_innocent",
        about="no node of an evicted group comes back",
        patches=(Patch(suspect_test, "judge_suspects", _clears_nobody),),
    ),
    Policy(
        name="counts_machines",
        about="the circuit breaker counts machines in place of judgements",
        patches=(Patch(breaker, "judgements", _by_machine),),
    ),
    Policy(
        name="remembers_groups_for_ever",
        about="keeps a group in its job since another one was evicted from that place long ago",
        patches=(Patch(group_guesses, "_is_recent", always(True)),),
    ),
    Policy(
        name="evicts_unreplaced_groups",
        about="evicts a group though nothing can replace it",
        patches=(choosing(_asks_nobody),),
    ),
)
