"""Handlers of the coordinator's events: what each event changes, and which orders follow from it.

The subscriptions are the keys of `HANDLERS`. A handler changes nothing that is stored; it may note what nodes report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

import msgspec

from holdfast.effects import Effect, RowWrite
from holdfast.events import (
    BackupsPlanned,
    CheckpointSaved,
    CopiesMeasured,
    Event,
    GenerationStarted,
    JobFinished,
    KeepingInterrupted,
    KeepingSpaced,
    ShardsFetched,
    StepsCertified,
    StepTimeMeasured,
)
from holdfast.ids import derived_id
from holdfast.orders.backup import BackupOrder
from holdfast_ckpt.plan import backups, cadence, certified, complete, spacing
from holdfast_ckpt.plan.catalogue import SOURCE, catalogue_entry, outdated
from holdfast_ckpt.plan.lead_time import lead_steps
from holdfast_ckpt.plan.records import HeldShards, JobBackups
from holdfast_ckpt.plan.shard_locations import backed_up
from holdfast_ckpt.plan.state import CoordinatorState
from holdfast_ckpt.store import CERTIFIED, PLANS, STEPS, key_of

Handler = Callable[[CoordinatorState, str, Any, datetime], Effect]
"""State, job, event and time."""


def checkpoint_saved(state: CoordinatorState, job: str, event: CheckpointSaved, now: datetime) -> Effect:
    """Put a step on the disk into the catalogue, and remove those that are no longer there."""
    entry, finding = catalogue_entry(job, event, now)
    if job in state.finished:
        return Effect(events=(finding,))
    row = RowWrite(table=STEPS, key=key_of(job, entry.step), row=entry)
    saved = state.saved_at.get(job, {}) | {entry.step: entry.saved_at}
    old, plan = outdated(saved, event.steps), state.plans.get(job)
    change = Effect()
    if plan is not None:
        announced = certified.announce(plan, plan, state.certified.get(job), saved, event.id)
        change = _plan_change(state, plan, announced)
    return Effect(rows=(row, *_removed(job, old), *change.rows), events=(finding,), orders=change.orders)


def generation_started(state: CoordinatorState, job: str, event: GenerationStarted, now: datetime) -> Effect:
    """Plan the backups of a new generation, and drop the steps above its restore limit."""
    if job in state.finished or event.purpose != "train":
        return Effect()
    decision = derived_id(event.id, "backups")
    plan = backups.plan_generation(state.plans.get(job), event, state.policy, state.shards.of_job(job), decision)
    if plan is None:
        return Effect()
    limit = event.restore_at_most
    abandoned = [step for step in state.saved_at.get(job, {}) if limit is not None and step > limit]
    return Effect(
        rows=(_plan_row(plan), *_removed(job, abandoned)),
        events=(_planned(plan, event.id, now, plan.reason),),
        orders=_orders(state, plan),
    )


def copies_measured(state: CoordinatorState, job: str, event: CopiesMeasured, now: datetime) -> Effect:
    """Note what a node has sent to its keeper, and adapt which steps stay and how often copies are sent."""
    plan = state.plans.get(job)
    shards = backed_up(event, plan.nproc_per_node) if plan else None
    if plan is None or shards is None or not _is_of_plan(shards, plan):
        return Effect()
    state.shards.record(shards)
    if shards.generation != plan.generation:
        return Effect()
    reports = state.reports_of(job)
    reports.newest[shards.node_rank] = shards.step
    if event.coming_step is not None:
        reports.coming[shards.node_rank] = event.coming_step
    newest, known = _newest_step(state, plan, event), state.certified.get(job)
    decision = derived_id(event.id, "complete")
    advanced = complete.advance(plan, newest, reports, known, decision)
    released = complete.release(advanced, state.shards.of_job(job), decision)
    if released != advanced:
        return _announced_change(state, released, event.id, now, "all nodes keep steps in memory again")
    adapted = _adapt_cadence(state, advanced, event, now)
    return _plan_change(state, plan, advanced) if adapted.is_nothing else adapted


def keeping_interrupted(state: CoordinatorState, job: str, event: KeepingInterrupted, now: datetime) -> Effect:
    """Have all nodes keep the newest step that all have, while one of them keeps none."""
    plan = state.plans.get(job)
    frozen = complete.freeze(plan, event, derived_id(event.id, "freeze")) if plan is not None else None
    if frozen is None or frozen == plan:
        return Effect()
    reason = f"{event.node} keeps no steps ({event.reason}): all nodes keep step {event.step} until it does again"
    return _announced_change(state, frozen, event.id, now, reason)


def shards_fetched(state: CoordinatorState, job: str, event: ShardsFetched, now: datetime) -> Effect:
    """Note what a node has fetched from its keeper."""
    plan = state.plans.get(job)
    shards = state.shards.add_fetch(event, plan.nproc_per_node) if plan else None
    if plan is not None and shards is not None and _is_of_plan(shards, plan):
        state.shards.record(shards)
    return Effect()


def step_time_measured(state: CoordinatorState, job: str, event: StepTimeMeasured, now: datetime) -> Effect:
    """Convert the job's wish for steps on the disk, if it is a time, by the new step time."""
    plan = state.plans.get(job)
    if plan is None or plan.step_s == event.median_s:
        return Effect()
    timed = msgspec.structs.replace(plan, step_s=event.median_s)
    every = spacing.persisted_every(timed)
    if every == plan.persist_every:
        return Effect(rows=(_plan_row(timed),))
    timed = msgspec.structs.replace(timed, persist_every=every, ordered_by=derived_id(event.id, "persistence"))
    reason = f"a step takes {event.median_s:.2g} s: one in {every} goes to the disk, {plan.persist} were asked for"
    return _announced_change(state, timed, event.id, now, reason)


def keeping_spaced(state: CoordinatorState, job: str, event: KeepingSpaced, now: datetime) -> Effect:
    """Note the distance of the steps that ranks keep; what goes to the disk is one of these."""
    plan = state.plans.get(job)
    after = spacing.spaced(plan, event, derived_id(event.id, "spacing")) if plan is not None else None
    if plan is None or after is None or after == plan:
        return Effect()
    if after.persist_every == plan.persist_every:
        return Effect(rows=(_plan_row(after),))
    reason = f"{after.kept.reason}; one step in {after.persist_every} goes to the disk, {plan.persist} were asked for"
    return _announced_change(state, after, event.id, now, reason)


def steps_certified(state: CoordinatorState, job: str, event: StepsCertified, now: datetime) -> Effect:
    """Note up to where a job's steps are clean, and name the steps that vaults keep to go back to."""
    if job in state.finished:
        return Effect()
    rows: tuple[RowWrite, ...] = ()
    newer = certified.newer(state.certified.get(job), job, event)
    if newer is not None:
        rows = (RowWrite(table=CERTIFIED, key=job, row=newer),)
    plan, known = state.plans.get(job), newer or state.certified.get(job)
    if plan is None:
        return Effect(rows=rows)
    rotated = certified.rotate(plan, event, state.reports_of(job))
    announced = certified.announce(plan, rotated, known, state.saved_at.get(job, {}), event.id)
    return Effect(rows=rows).together(_plan_change(state, plan, announced))


def job_finished(state: CoordinatorState, job: str, event: JobFinished, now: datetime) -> Effect:
    """Remove everything of a finished job, and order its nodes to be idle unless another job has them."""
    state.finished.add(job)
    rows = _removed(job, state.saved_at.get(job, {}))
    if job in state.certified:
        rows = (*rows, RowWrite(table=CERTIFIED, key=job, row=None))
    plan = state.plans.get(job)
    if plan is None:
        return Effect(rows=rows)
    job_of = backups.job_of_node(other for other in state.plans.values() if other is not plan)
    idle = backups.idle_orders(plan, event.id, f"the job is {event.outcome}")
    return Effect(
        rows=(*rows, RowWrite(table=PLANS, key=job, row=None)),
        orders=tuple(order for order in idle if order.node not in job_of),
    )


HANDLERS: dict[type[Event], Handler] = {
    CheckpointSaved: checkpoint_saved,
    GenerationStarted: generation_started,
    CopiesMeasured: copies_measured,
    KeepingInterrupted: keeping_interrupted,
    ShardsFetched: shards_fetched,
    StepTimeMeasured: step_time_measured,
    KeepingSpaced: keeping_spaced,
    StepsCertified: steps_certified,
    JobFinished: job_finished,
}


def orders_in_force(state: CoordinatorState) -> list[BackupOrder]:
    """Return the present order of every node of a job that is not finished."""
    job_of = backups.job_of_node(state.plans.values())
    return [
        order for plan in state.plans.values() for order in backups.orders_of(plan) if job_of[order.node] == plan.job
    ]


def _adapt_cadence(state: CoordinatorState, plan: JobBackups, event: CopiesMeasured, now: datetime) -> Effect:
    before = state.paces.get(plan.job) or cadence.start(plan.every, now)
    load = cadence.load_of(plan.copied_every, event.took_s, plan.step_s, event.skipped)
    after = cadence.adapt(before, event.node or "", load, now, state.policy.backup_every)
    state.paces[plan.job] = after
    if after.every == plan.every:
        return Effect()
    changed = msgspec.structs.replace(
        plan,
        every=after.every,
        every_before=plan.every,
        # Nodes receive the order at different steps. Without a step to begin at they would send different steps for a
        # moment, and a loss in that moment would leave no step that all have.
        every_from=_newest_step(state, plan, event) + (lead_steps(plan.step_s) or 0),
        ordered_by=derived_id(event.id, "cadence"),
    )
    return _announced_change(state, changed, event.id, now, cadence.reason(plan.every, after.every, event))


def _newest_step(state: CoordinatorState, plan: JobBackups, event: CopiesMeasured) -> int:
    """Return the newest step that a node of this generation is known to have reached."""
    shards = state.shards.of_job(plan.job).values()
    return max([event.step, *(each.step for each in shards if each.generation == plan.generation)])


def _is_of_plan(shards: HeldShards, plan: JobBackups) -> bool:
    """Return False for reports of a later generation, or of a node rank that the job does not have."""
    return shards.generation <= plan.generation and shards.node_rank < len(plan.layout.nodes)


def _plan_change(state: CoordinatorState, before: JobBackups, after: JobBackups) -> Effect:
    if after == before:
        return Effect()
    changed = _counted(after)
    return Effect(rows=(_plan_row(changed),), orders=_orders(state, changed))


def _announced_change(state: CoordinatorState, plan: JobBackups, cause: str, now: datetime, reason: str) -> Effect:
    changed = _counted(plan)
    return Effect(
        rows=(_plan_row(changed),), events=(_planned(changed, cause, now, reason),), orders=_orders(state, changed)
    )


def _counted(plan: JobBackups) -> JobBackups:
    return msgspec.structs.replace(plan, number=plan.number + 1)


def _orders(state: CoordinatorState, plan: JobBackups) -> tuple[BackupOrder, ...]:
    job_of = backups.job_of_node((state.plans | {plan.job: plan}).values())
    return tuple(order for order in backups.orders_of(plan) if job_of[order.node] == plan.job)


def _plan_row(plan: JobBackups) -> RowWrite:
    return RowWrite(table=PLANS, key=plan.job, row=plan)


def _removed(job: str, steps: Iterable[int]) -> tuple[RowWrite, ...]:
    return tuple(RowWrite(table=STEPS, key=key_of(job, step), row=None) for step in steps)


def _planned(plan: JobBackups, cause: str, now: datetime, reason: str) -> BackupsPlanned:
    return BackupsPlanned(
        id=plan.ordered_by,
        at=now,
        source=SOURCE,
        job=plan.job,
        generation=plan.generation,
        cause=cause,
        strategy=plan.strategy,
        protects=plan.protects,
        every=plan.every,
        persist_every=plan.persist_every,
        reason=reason,
    )
