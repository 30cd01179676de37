"""The checkpoint coordinator as a decider."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from holdfast.events import AnyEvent, CheckpointSaved, JobFinished
from holdfast.finished_jobs import FinishedJobs
from holdfast.service import Decider, Effect, Row
from holdfast_ckpt.plan import outdated, record
from holdfast_ckpt.state import CataloguedStep
from holdfast_ckpt.store import STEPS, key_of


class Coordinator(Decider):
    """Writes the catalogue; see `holdfast.service.Decider`."""

    name = "ckpt-coordinator"
    tables = (STEPS,)
    handles = (CheckpointSaved, JobFinished)

    def __init__(self) -> None:
        self._saved_at: dict[str, dict[int, datetime]] = {}
        self._finished = FinishedJobs()

    def load(self, rows: Mapping[str, Mapping[str, Any]]) -> None:
        catalogue: defaultdict[str, dict[int, datetime]] = defaultdict(dict)
        for entry in rows[STEPS.name].values():
            catalogue[entry.job][entry.step] = entry.saved_at
        self._saved_at = dict(catalogue)

    def on_event(self, event: AnyEvent, now: datetime) -> Effect:
        if event.job is None:
            return Effect()
        known = self._saved_at.get(event.job, {})
        if isinstance(event, JobFinished):
            self._finished.add(event.job)
            return Effect(rows=_removed(event.job, known))
        if not isinstance(event, CheckpointSaved):
            return Effect()
        entry, finding = record(event, now)
        if event.job in self._finished:
            return Effect(events=(finding,))
        row = Row(table=STEPS, key=key_of(entry.job, entry.step), row=entry)
        old = outdated(known | {entry.step: entry.saved_at})
        return Effect(rows=(row, *_removed(entry.job, old)), events=(finding,))

    def adopt(self, effect: Effect) -> None:
        for row in effect.rows:
            if isinstance(row.row, CataloguedStep):
                self._saved_at.setdefault(row.row.job, {})[row.row.step] = row.row.saved_at
            else:
                job, _, step = row.key.rpartition("/")
                del self._saved_at[job][int(step)]
                if not self._saved_at[job]:
                    del self._saved_at[job]


def _removed(job: str, steps: Iterable[int]) -> tuple[Row, ...]:
    return tuple(Row(table=STEPS, key=key_of(job, step), row=None) for step in steps)
