"""Wrong policies about one machine that its own rank or process accuses: it comes back untested, or leaves too often.

They try to hide behind the rule that such a machine may leave to be tested.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.events import Event, Eviction
from holdfast_controller.plan.checks import suspect_test
from holdfast_controller.plan.incident import recovery, rungs
from holdfast_controller.plan.incident.incident import Failure
from holdfast_controller.plan.incident.rung_choice import LadderOptions, RungChoice
from holdfast_proving.policies.mutation import Function, always, choosing
from holdfast_proving.policies.policy import Insight, Patch, Policy

HALF_AN_HOUR_S = 1800.0


def _of_groups_only(original: Function, insight: Insight) -> Function:
    def follow_up(events: Sequence[Event], *args: Any) -> Any:
        is_alone = any(isinstance(event, Eviction) and event.together == (event.node,) for event in events)
        return None if is_alone else original(events, *args)

    return follow_up


def _tests_no_stuck_one(choice: RungChoice, failure: Failure, options: LadderOptions) -> RungChoice:
    return msgspec.structs.replace(choice, one_of=False) if failure.suspects else choice


def _leaves_at_once(choice: RungChoice, failure: Failure, options: LadderOptions) -> RungChoice:
    return msgspec.structs.replace(choice, asks_first=False) if len(choice.nodes) == 1 else choice


SUSPICIONS: tuple[Policy, ...] = (
    Policy(
        name="blocks_the_stuck",
        about="tests no machine on which a process is stuck: it is blocked for a hang that has passed",
        patches=(choosing(_tests_no_stuck_one),),
    ),
    Policy(
        name="takes_back_untested",
        about="tests no machine that left alone: it comes back after half an hour, whatever is wrong with it",
        patches=(
            Patch(suspect_test, "follow_up", _of_groups_only),
            Patch(rungs, "_blocked_for_s", always(HALF_AN_HOUR_S)),
        ),
    ),
    Policy(
        name="exchanges_without_end",
        about="exchanges each machine that is accused, though tests have just cleared another one of the same job",
        patches=(Patch(recovery, "may_exchange", always(True)),),
    ),
    Policy(
        name="leaves_unreplaced",
        about="has an accused machine leave though nothing can replace it, or be the witness of its tests",
        patches=(choosing(_leaves_at_once),),
    ),
)
