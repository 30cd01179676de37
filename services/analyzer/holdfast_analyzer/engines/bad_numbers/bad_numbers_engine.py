"""The numbers of all jobs, and the rows stored for them: findings rest on these, and no later sample repeats them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from holdfast.effects import Effect, RowWrite
from holdfast.events import AnyEvent, BadNumber, NumbersLogged, StepsCertified, StepsMeasured
from holdfast.settings.findings.corruption import CorruptionPolicy
from holdfast.store import Table
from holdfast_analyzer.engines.bad_numbers.bad_numbers import BadNumbers, StoredNumbers
from holdfast_analyzer.engines.engine import Engine

KNOWN = Table(
    name="known",
    row_type=StoredNumbers,
    columns=lambda known: {"generation": known.generation, "certified_step": known.certified},
)


class BadNumbersEngine(Engine):
    events = (StepsMeasured, NumbersLogged)
    tables = (KNOWN,)

    def __init__(self, policy: CorruptionPolicy) -> None:
        self._policy = policy
        self._jobs: dict[str, BadNumbers] = {}
        self._stored: dict[str, StoredNumbers] = {}

    def load(self, rows: Mapping[str, Mapping[str, Any]]) -> None:
        self._stored = dict(rows[KNOWN.name])
        for job, known in self._stored.items():
            if known.waiting:
                self._jobs[job] = BadNumbers(job, self._policy, known)

    def take(self, job: str, event: AnyEvent, now: datetime) -> Effect:
        if job not in self._jobs:
            self._jobs[job] = BadNumbers(job, self._policy, self._stored.get(job))
        numbers = self._jobs[job]
        if isinstance(event, StepsMeasured):
            numbers.take(event)
        elif isinstance(event, NumbersLogged):
            numbers.take_logged(event)
        return _effect(job, numbers, numbers.findings(event.id, now))

    def due(self, now: datetime, hearing_since: datetime | None) -> Effect:
        whole = Effect()
        for job, numbers in self._jobs.items():
            whole = whole.together(_effect(job, numbers, numbers.overdue(now)))
        return whole

    def committed(self, effect: Effect) -> None:
        for row in effect.rows:
            if row.table is not KNOWN:
                continue
            if isinstance(row.row, StoredNumbers):
                self._stored[row.key] = row.row
                self._jobs[row.key].stored(row.row)
            else:
                self._stored.pop(row.key, None)
        for event in effect.events:
            if isinstance(event, BadNumber | StepsCertified) and event.job in self._jobs:
                self._jobs[event.job].committed(event)

    def forget(self, job: str) -> tuple[RowWrite, ...]:
        self._jobs.pop(job, None)
        return (RowWrite(table=KNOWN, key=job, row=None),) if job in self._stored else ()


def _effect(job: str, numbers: BadNumbers, found: tuple[BadNumber | StepsCertified, ...]) -> Effect:
    rows = (RowWrite(table=KNOWN, key=job, row=numbers.known(found)),) if found or numbers.has_news else ()
    return Effect(rows=rows, events=found)
