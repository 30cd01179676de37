"""The checkpoint coordinator as a decider: the catalogue of steps on disk and in memory, and orders for backups."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

import msgspec

from holdfast.daemon.finished_jobs import FinishedJobs
from holdfast.daemon.service_shell import Decider
from holdfast.effects import Effect, RowWrite
from holdfast.events import (
    AnyEvent,
    BackupsPlanned,
    CheckpointSaved,
    CopiesMeasured,
    GenerationStarted,
    JobFinished,
    ShardsFetched,
    StepsCertified,
    StepTimeMeasured,
)
from holdfast.events.parts.persist_every import PersistEvery
from holdfast.ids import derived_id
from holdfast.orders.backup import BackupOrder
from holdfast.settings.checkpoint import CheckpointPolicy
from holdfast_ckpt.plan import backups, cadence, certified
from holdfast_ckpt.plan.cadence import Pace
from holdfast_ckpt.plan.catalogue import SOURCE, outdated, record
from holdfast_ckpt.plan.checkpoint_state import CataloguedStep, CertifiedSteps, JobBackups
from holdfast_ckpt.plan.lead_time import lead_steps
from holdfast_ckpt.plan.shard_locations import Holdings, copied
from holdfast_ckpt.store import CERTIFIED, PLANS, SHARDS, STEPS, TABLES, key_of, parts_of

WRITTEN_AT_ONCE_MAX = 200
"""Rows of shards in one transaction, twice a second: decisions wait behind it."""


class Coordinator(Decider):
    """Writes the catalogue and gives orders to vaults; see `holdfast.daemon.service_shell.Decider`."""

    name = "ckpt-coordinator"
    tables = TABLES
    handles = (
        CheckpointSaved,
        GenerationStarted,
        CopiesMeasured,
        ShardsFetched,
        StepTimeMeasured,
        StepsCertified,
        JobFinished,
    )

    def __init__(self, policy: CheckpointPolicy | None = None) -> None:
        self._policy = policy or CheckpointPolicy()
        self._saved_at: dict[str, dict[int, datetime]] = {}
        self._plans: dict[str, JobBackups] = {}
        self._certified: dict[str, CertifiedSteps] = {}
        self._finished = FinishedJobs()
        # In memory only: they are soon as they were.
        self._holdings = Holdings()
        self._paces: dict[str, Pace] = {}
        self._kept: dict[str, dict[int, int]] = {}

    def load(self, rows: Mapping[str, Mapping[str, Any]]) -> None:
        catalogue: defaultdict[str, dict[int, datetime]] = defaultdict(dict)
        for entry in rows[STEPS.name].values():
            catalogue[entry.job][entry.step] = entry.saved_at
        self._saved_at = dict(catalogue)
        self._plans = dict(rows[PLANS.name])
        self._certified = dict(rows[CERTIFIED.name])
        self._paces = {}
        self._holdings = Holdings(rows[SHARDS.name].values())
        for job in self._holdings.jobs():
            if job not in self._plans:
                self._holdings.forget(job)

    def on_event(self, event: AnyEvent, now: datetime) -> Effect:
        if event.job is None:
            return Effect()
        match event:
            case CheckpointSaved():
                return self._saved(event, now)
            case GenerationStarted() if event.job not in self._finished and event.purpose == "train":
                return self._started(event, now)
            case CopiesMeasured() | ShardsFetched():
                return self._reported(event, now)
            case StepTimeMeasured():
                return self._measured(event, now)
            case StepsCertified() if event.job not in self._finished:
                return self._heard_certified(event)
            case JobFinished():
                self._finished.add(event.job)
                return self._ended(event)
            case _:
                return Effect()

    def on_time(self, now: datetime, hearing_since: datetime | None) -> Effect:
        return Effect(
            rows=tuple(
                RowWrite(table=SHARDS, key=key_of(*place), row=held)
                for place, held in self._holdings.unwritten(WRITTEN_AT_ONCE_MAX).items()
            )
        )

    def adopt(self, effect: Effect) -> None:
        for row in effect.rows:
            if row.table is SHARDS:
                self._holdings.written(parts_of(row.key))
            elif row.table is PLANS:
                self._adopt_plan(row.key, row.row)
            elif row.table is CERTIFIED:
                self._adopt_certified(row.key, row.row)
            elif isinstance(row.row, CataloguedStep):
                self._saved_at.setdefault(row.row.job, {})[row.row.step] = row.row.saved_at
            else:
                job, step = parts_of(row.key)
                del self._saved_at[job][step]
                if not self._saved_at[job]:
                    del self._saved_at[job]

    def standing_orders(self) -> list[BackupOrder]:
        """What holds now for every node of a job that is not over."""
        holders = backups.holders(self._plans.values())
        return [
            order for plan in self._plans.values() for order in backups.orders(plan) if holders[order.node] == plan.job
        ]

    # --- steps on disk ----------------------------------------------------------------------------

    def _saved(self, event: CheckpointSaved, now: datetime) -> Effect:
        entry, finding = record(event, now)
        if entry.job in self._finished:
            return Effect(events=(finding,))
        row = RowWrite(table=STEPS, key=key_of(entry.job, entry.step), row=entry)
        saved = self._saved_at.get(entry.job, {}) | {entry.step: entry.saved_at}
        old, plan = outdated(saved, event.steps), self._plans.get(entry.job)
        told = certified.told(plan, plan, self._certified.get(entry.job), saved, event.id) if plan else None
        rows, orders = self._changed(plan, told)
        return Effect(rows=(row, *_removed(entry.job, old), *rows), events=(finding,), orders=orders)

    # --- steps in memory --------------------------------------------------------------------------

    def _started(self, event: GenerationStarted, now: datetime) -> Effect:
        assert event.job is not None
        known, held = self._plans.get(event.job), self._holdings.of(event.job)
        plan = backups.planned(known, event, self._policy, held, derived_id(event.id, "backups"))
        if plan is None:
            return Effect()
        saved, limit = self._saved_at.get(event.job, {}), event.restore_at_most
        given_up = [step for step in saved if limit is not None and step > limit]
        return Effect(
            rows=(RowWrite(table=PLANS, key=plan.job, row=plan), *_removed(event.job, given_up)),
            events=(_said(plan, event.id, now, plan.reason),),
            orders=self._orders(plan),
        )

    def _reported(self, event: CopiesMeasured | ShardsFetched, now: datetime) -> Effect:
        plan = self._plans.get(event.job or "")
        if plan is None:
            return Effect()
        if isinstance(event, ShardsFetched):
            held = self._holdings.fetched(event, plan.nproc_per_node)
        else:
            held = copied(event, plan.nproc_per_node)
        if held is None:
            return Effect()
        if held.generation > plan.generation or held.node_rank >= len(plan.layout.nodes):
            return Effect()  # no report of what was ordered
        self._holdings.take(held)
        if isinstance(event, CopiesMeasured) and held.generation == plan.generation:
            if event.coming_step is not None:
                self._kept.setdefault(plan.job, {})[held.node_rank] = event.coming_step
            return self._paced(plan, event, now)
        return Effect()

    def _paced(self, plan: JobBackups, event: CopiesMeasured, now: datetime) -> Effect:
        before = self._paces.get(plan.job) or cadence.begin(plan.every, now)
        load = cadence.load_of(plan.every, event.took_s, plan.step_s, event.skipped)
        after = cadence.paced(before, event.node or "", load, now, self._policy.backup_every)
        self._paces[plan.job] = after
        if after.every == plan.every:
            return Effect()
        changed = msgspec.structs.replace(
            plan,
            every=after.every,
            every_before=plan.every,
            # Nodes that hear of it at different steps would otherwise send different ones for a moment, and a loss
            # in that moment would leave no step that all have.
            every_from=self._newest_step(plan, event) + (lead_steps(plan.step_s) or 0),
            ordered_by=derived_id(event.id, "cadence"),
        )
        reason = cadence.in_words(plan.every, after.every, event)
        return Effect(
            rows=(RowWrite(table=PLANS, key=plan.job, row=changed),),
            events=(_said(changed, event.id, now, reason),),
            orders=self._orders(changed),
        )

    def _newest_step(self, plan: JobBackups, event: CopiesMeasured) -> int:
        """The newest that a node of this generation is known to have reached."""
        held = self._holdings.of(plan.job).values()
        return max([event.step, *(each.step for each in held if each.generation == plan.generation)])

    def _measured(self, event: StepTimeMeasured, now: datetime) -> Effect:
        plan = self._plans.get(event.job or "")
        if plan is None or plan.step_s == event.median_s:
            return Effect()
        every = PersistEvery.parse(plan.persist).in_steps(event.median_s, plan.persist_every)
        timed = msgspec.structs.replace(plan, step_s=event.median_s)
        if every == plan.persist_every:
            return Effect(rows=(RowWrite(table=PLANS, key=plan.job, row=timed),))
        decided = derived_id(event.id, "persistence")
        timed = msgspec.structs.replace(timed, persist_every=every, ordered_by=decided)
        reason = f"a step takes {event.median_s:.2g} s: one in {every} goes to the disk, {plan.persist} were asked for"
        return Effect(
            rows=(RowWrite(table=PLANS, key=plan.job, row=timed),),
            events=(_said(timed, event.id, now, reason),),
            orders=self._orders(timed),
        )

    def _heard_certified(self, event: StepsCertified) -> Effect:
        job = event.job or ""
        rows: list[RowWrite] = []
        if news := certified.heard(self._certified.get(job), event):
            rows.append(RowWrite(table=CERTIFIED, key=job, row=news))
        plan, known, told = self._plans.get(job), news or self._certified.get(job), None
        if plan is not None:
            rotated = certified.rotated(plan, event, self._kept.get(job, {}))
            told = certified.told(plan, rotated, known, self._saved_at.get(job, {}), event.id)
        changed, orders = self._changed(plan, told)
        return Effect(rows=(*rows, *changed), orders=orders)

    def _changed(
        self, before: JobBackups | None, after: JobBackups | None
    ) -> tuple[tuple[RowWrite, ...], tuple[BackupOrder, ...]]:
        if after is None or after == before:
            return (), ()
        return (RowWrite(table=PLANS, key=after.job, row=after),), self._orders(after)

    def _orders(self, plan: JobBackups) -> tuple[BackupOrder, ...]:
        holders = backups.holders((self._plans | {plan.job: plan}).values())
        return tuple(order for order in backups.orders(plan) if holders[order.node] == plan.job)

    def _ended(self, event: JobFinished) -> Effect:
        assert event.job is not None
        rows = _removed(event.job, self._saved_at.get(event.job, {}))
        if event.job in self._certified:
            rows = (*rows, RowWrite(table=CERTIFIED, key=event.job, row=None))
        plan = self._plans.get(event.job)
        if plan is None:
            return Effect(rows=rows)
        holders = backups.holders(other for other in self._plans.values() if other is not plan)
        idle = backups.idle_orders(plan, event.id, f"the job is {event.outcome}")
        return Effect(
            rows=(*rows, RowWrite(table=PLANS, key=plan.job, row=None)),
            orders=tuple(order for order in idle if order.node not in holders),
        )

    def _adopt_certified(self, job: str, row: msgspec.Struct | None) -> None:
        if isinstance(row, CertifiedSteps):
            self._certified[job] = row
        else:
            del self._certified[job]

    def _adopt_plan(self, job: str, plan: msgspec.Struct | None) -> None:
        before = self._plans.get(job)
        if isinstance(plan, JobBackups):
            self._plans[job] = plan
            if before and before.generation == plan.generation:
                return
            self._kept.pop(job, None)
        else:
            del self._plans[job]
            self._kept.pop(job, None)
            self._holdings.forget(job)
        self._paces.pop(job, None)


def _said(plan: JobBackups, cause: str, now: datetime, reason: str) -> BackupsPlanned:
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


def _removed(job: str, steps: Iterable[int]) -> tuple[RowWrite, ...]:
    return tuple(RowWrite(table=STEPS, key=key_of(job, step), row=None) for step in steps)
