"""Wrong policies about copies of checkpoints, and about replays."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from holdfast.events import GenerationStarted, StepsCertified
from holdfast.settings.load import Settings
from holdfast.settings.mechanisms import MechanismPolicy
from holdfast.topology import Topology
from holdfast_ckpt.plan import backups, certified
from holdfast_ckpt.plan.backup_plan import BackupPlan, BackupStrategy
from holdfast_ckpt.plan.records import HeldShards, JobBackups
from holdfast_controller.plan.checks import replays
from holdfast_controller.plan.draft import JobDraft
from holdfast_controller.plan.incident.incident import Failure
from holdfast_controller.plan.incident.rung_choice import REPLAYS, RungChoice
from holdfast_controller.plan.job import JobState
from holdfast_proving.policies.mutation import Function, always, taking
from holdfast_proving.policies.policy import Insight, Patch, Policy

BACK_STEPS = 2


def _one_too_old(original: Any, insight: Insight) -> Any:
    """Limit each start to a step before the newest."""

    def limit(state: JobState) -> int | None:
        known: int | None = original.fget(state)
        older = max(0, state.step - BACK_STEPS)
        return older if known is None else min(known, older)

    return property(limit)


def _nobody_keeps(original: Function, insight: Insight) -> Function:
    def plan(topology: Topology, *more: Any) -> BackupPlan:
        planned: BackupPlan = original(topology, *more)
        return msgspec.structs.replace(planned, keeper=tuple(range(topology.nnodes)))

    return plan


def _kept_in_own_rack(original: Function, insight: Insight) -> Function:
    def plan(topology: Topology, strategy: BackupStrategy, racks: Sequence[str] = ()) -> BackupPlan:
        together: defaultdict[str, list[int]] = defaultdict(list)
        for node, rack in enumerate(racks):
            together[rack].append(node)
        keeper = list(range(topology.nnodes))
        for nodes in together.values():
            for place, node in enumerate(nodes):
                keeper[node] = nodes[(place + 1) % len(nodes)]
        planned: BackupPlan = original(topology, strategy, racks)
        return msgspec.structs.replace(planned, keeper=tuple(keeper))

    return plan


def _no_sources(original: Function, insight: Insight) -> Function:
    return lambda layout, past, held: ((),) * len(layout.nodes)


def _planned_once(original: Function, insight: Insight) -> Function:
    """Keep the keepers of a job's first generation, whichever of them has left since."""

    def plan(
        before: JobBackups | None, event: GenerationStarted, policy: Any, held: Mapping[int, HeldShards], decision: str
    ) -> JobBackups | None:
        after: JobBackups | None = original(before, event, policy, held, decision)
        if before is None or after is None:
            return after
        return msgspec.structs.replace(after, layout=before.layout, sources=before.sources)

    return plan


def _certified_at_once(original: Function, insight: Insight) -> Function:
    def rotate(plan: JobBackups, event: StepsCertified, kept: Mapping[int, int]) -> JobBackups:
        changed: JobBackups = original(plan, msgspec.structs.replace(event, step=event.newest_step), kept)
        return changed

    return rotate


def _of_the_group(draft: JobDraft, failure: Failure, choice: RungChoice) -> RungChoice:
    """Evict a neighbour of the machine that a replay names."""
    if choice.mechanism != REPLAYS:
        return choice
    others = tuple(node for node in draft.state.nodes if node not in choice.nodes)
    return msgspec.structs.replace(choice, nodes=others[: len(choice.nodes)], one_of=False)


COPIES: tuple[Policy, ...] = (
    Policy(
        name="restores_too_old",
        about="restores a step before the newest",
        patches=(Patch(JobState, "next_limit", _one_too_old),),
    ),
    Policy(
        name="forgets_copies",
        about="names no vault to ask for earlier steps",
        patches=(Patch(backups, "_sources", _no_sources),),
    ),
    Policy(
        name="plans_copies_once",
        about="goes on copying to machines that have left",
        patches=(Patch(backups, "plan_generation", _planned_once),),
    ),
    Policy(name="never_backs_up", about="orders no copies", patches=(Patch(backups, "plan_backups", _nobody_keeps),)),
    Policy(
        name="copies_into_own_rack",
        about="has copies kept within the rack",
        patches=(Patch(backups, "plan_backups", _kept_in_own_rack),),
    ),
    Policy(
        name="keeps_no_clean_step",
        about="keeps no step that is known to be clean",
        patches=(Patch(certified, "rotate", _certified_at_once),),
    ),
    Policy(
        name="never_replays",
        about="compares no machines",
        settings=Settings(mechanisms=MechanismPolicy(replay="observe")),
    ),
    Policy(
        name="disbelieves_replays",
        about="ignores what a replay finds",
        patches=(Patch(replays, "named_by_replay", always(None)),),
    ),
    Policy(
        name="evicts_of_the_group",
        about="evicts an innocent machine after a replay",
        patches=(taking(_of_the_group),),
    ),
)
