"""Wrong policies about versions of a job's code: updates, rollbacks, and whose fault a failure of new code is."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.settings.code import CodePolicy
from holdfast.settings.load import Settings
from holdfast_controller.plan import transitions
from holdfast_controller.plan.code import updates
from holdfast_controller.plan.code.code_state import CodeState, CodeVersion, PendingVersion
from holdfast_controller.plan.draft import JobDraft
from holdfast_controller.plan.incident import recovery
from holdfast_controller.plan.incident.incident import Failure, Rung
from holdfast_controller.plan.incident.rung_choice import LadderOptions, RungChoice
from holdfast_controller.plan.job import JobState
from holdfast_proving.policies.mutation import Function, always, choosing, taking, with_option
from holdfast_proving.policies.policy import Insight, Patch, Policy


def _has_other_code(original: Function, insight: Insight) -> Function:
    def can_roll_back(state: JobState, generation: int) -> bool:
        code = state.code
        return code.present is not None and (code.pending or code.fallback) is not None

    return can_roll_back


def _at_once(choice: RungChoice, failure: Failure, options: LadderOptions) -> RungChoice:
    return msgspec.structs.replace(choice, rung=Rung.ROLLBACK, nodes=()) if options.can_roll_back else choice


def _oldest(original: Function, insight: Insight) -> Any:
    def fallback(code: CodeState) -> CodeVersion | None:
        return next((known for known in code.versions if known.version != code.version), None)

    return property(fallback)


def _blames_reporter(draft: JobDraft, failure: Failure, choice: RungChoice) -> RungChoice:
    if choice.rung is not Rung.ROLLBACK:
        return choice
    node = failure.node if failure.node in draft.state.nodes else draft.state.nodes[0]
    return msgspec.structs.replace(choice, rung=Rung.EVICT, nodes=(node,))


def _urgent(original: Function, insight: Insight) -> Function:
    def plan(draft: JobDraft, code: CodeState, pending: PendingVersion) -> None:
        original(draft, code, msgspec.structs.replace(pending, is_urgent=True, until=None))

    return plan


def _not_at_failures(original: Function, insight: Insight) -> Function:
    """Leave a version that waits where it is, if a failure restarts the job."""

    def apply(draft: JobDraft, reason: str) -> None:
        code = draft.state.code
        if draft.state.incident is None or code.pending is None or code.pending.is_urgent:
            original(draft, reason)

    return apply


CODES: tuple[Policy, ...] = (
    Policy(
        name="never_rolls_back",
        about="trusts each version of the code",
        patches=(Patch(recovery, "can_roll_back", always(False)),),
    ),
    Policy(
        name="rolls_back_at_once",
        about="rolls the code back at the first failure of any kind",
        patches=(Patch(recovery, "can_roll_back", _has_other_code), choosing(_at_once)),
    ),
    Policy(
        name="doubts_good_code",
        about="code that has trained for long is as suspect as new code",
        patches=(Patch(recovery, "can_roll_back", _has_other_code),),
    ),
    Policy(
        name="rolls_back_too_far",
        about="goes back to the first version",
        patches=(Patch(CodeState, "fallback", _oldest),),
    ),
    Policy(
        name="trusts_the_first_step",
        about="a version is good once it has made a step",
        settings=Settings(code=CodePolicy(good_after_steps=1)),
    ),
    Policy(
        name="blames_machines_for_code",
        about="evicts the node that reports a failure of new code",
        patches=(taking(_blames_reporter),),
    ),
    Policy(
        name="forgets_failures_of_code",
        about="counts failures of new code within one incident only",
        patches=(Patch(recovery, "_options", with_option(code_failures=0)),),
    ),
    Policy(
        name="loses_updates", about="accepts updates and forgets them", patches=(Patch(updates, "_plan", always(None)),)
    ),
    Policy(name="updates_at_once", about="no update waits for a failure", patches=(Patch(updates, "_plan", _urgent),)),
    Policy(
        name="updates_never_ride",
        about="a failure restarts the code that failed, though other code waits",
        patches=(Patch(transitions, "apply_pending", _not_at_failures),),
    ),
    Policy(
        name="forgets_windows",
        about="an update that no failure brings in is never started",
        patches=(Patch(updates, "is_due", always(False)),),
    ),
)
