"""State of the coordinator: what is stored, and what the nodes' reports keep repeating."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from holdfast.daemon.jobs.finished_jobs import FinishedJobs
from holdfast.effects import Effect, RowWrite
from holdfast.settings.checkpoint import CheckpointPolicy
from holdfast_ckpt.plan.cadence import Pace
from holdfast_ckpt.plan.certified import Reports
from holdfast_ckpt.plan.records import CataloguedStep, CertifiedSteps, JobBackups
from holdfast_ckpt.plan.shard_locations import ShardLocations
from holdfast_ckpt.store import CERTIFIED, PLANS, SHARDS, STEPS, key_of, parts_of


class CoordinatorState:
    """Everything that the handlers of `planner` decide from. Stored fields change only in `adopt`."""

    def __init__(self, policy: CheckpointPolicy) -> None:
        self.policy = policy
        self.saved_at: dict[str, dict[int, datetime]] = {}
        """Steps on the disk: job -> step -> time of saving."""
        self.plans: dict[str, JobBackups] = {}
        self.certified: dict[str, CertifiedSteps] = {}
        self.finished = FinishedJobs()
        # From here on in memory only: the next reports restore it.
        self.shards = ShardLocations()
        self.paces: dict[str, Pace] = {}
        self.reports: dict[str, Reports] = {}
        """Reports of the nodes of each job in its present generation (see `certified.py`)."""

    def load(self, rows: Mapping[str, Mapping[str, Any]]) -> None:
        """Replace the state by the stored rows: table name -> key -> row."""
        catalogue: defaultdict[str, dict[int, datetime]] = defaultdict(dict)
        for entry in rows[STEPS.name].values():
            catalogue[entry.job][entry.step] = entry.saved_at
        self.saved_at = dict(catalogue)
        self.plans = dict(rows[PLANS.name])
        self.certified = dict(rows[CERTIFIED.name])
        self.paces = {}
        self.shards = ShardLocations(rows[SHARDS.name].values())
        for job in self.shards.jobs():
            if job not in self.plans:
                self.shards.forget(job)

    def reports_of(self, job: str) -> Reports:
        return self.reports.setdefault(job, Reports({}, {}))

    def shards_to_write(self, count_max: int) -> Effect:
        """Return an effect that writes the shard rows that have waited longest."""
        unwritten = self.shards.unwritten(count_max)
        return Effect(
            rows=tuple(RowWrite(table=SHARDS, key=key_of(*place), row=row) for place, row in unwritten.items())
        )

    def adopt(self, effect: Effect) -> None:
        """Take over the rows of a committed effect."""
        for row in effect.rows:
            if row.table is SHARDS:
                self.shards.mark_written(parts_of(row.key))
            elif row.table is PLANS:
                self._adopt_plan(row.key, row.row)
            elif row.table is CERTIFIED:
                self._adopt_certified(row.key, row.row)
            elif row.table is STEPS:
                self._adopt_step(row.key, row.row)

    def _adopt_step(self, key: str, row: msgspec.Struct | None) -> None:
        job, step = parts_of(key)
        if isinstance(row, CataloguedStep):
            self.saved_at.setdefault(job, {})[step] = row.saved_at
        else:
            del self.saved_at[job][step]
            if not self.saved_at[job]:
                del self.saved_at[job]

    def _adopt_certified(self, job: str, row: msgspec.Struct | None) -> None:
        if isinstance(row, CertifiedSteps):
            self.certified[job] = row
        else:
            del self.certified[job]

    def _adopt_plan(self, job: str, plan: msgspec.Struct | None) -> None:
        before = self.plans.get(job)
        if isinstance(plan, JobBackups):
            self.plans[job] = plan
            if before and before.generation == plan.generation:
                return
            self.reports.pop(job, None)
        else:
            del self.plans[job]
            self.reports.pop(job, None)
            self.shards.forget(job)
        self.paces.pop(job, None)
