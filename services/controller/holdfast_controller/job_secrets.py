"""Secrets of jobs, apart from their states: rows of a table of their own, which go when the job ends.

Decisions and orders need them, so in memory a job's state is whole. What is written of it is masked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec
import structlog

from holdfast.effects import RowWrite
from holdfast.events.parts.job import JobSpec
from holdfast_controller.plan.job import JobState
from holdfast_controller.plan.requests import masked
from holdfast_controller.store import JOB_SECRETS, JOBS, JobSecrets

log = structlog.get_logger(__name__)


class _Written(NamedTuple):
    whole: JobSpec
    masked: JobSpec


class SecretsApart:
    """The secrets of all jobs, as they are stored."""

    def __init__(self) -> None:
        self._stored: dict[str, JobSecrets] = {}
        # A specification hardly ever changes: it is masked once, and not for each event.
        self._written: dict[str, _Written] = {}

    def load(self, stored: Mapping[str, JobSecrets], states: Iterable[JobState]) -> dict[str, JobState]:
        """Return the states as they were before they were masked."""
        self._stored, self._written = dict(stored), {}
        whole = {state.job: self.whole(state) for state in states}
        for job, state in whole.items():
            if job not in stored and not state.is_over and _of(state.spec) is not None:
                # Both rows are written together, so this one was deleted by hand.
                log.error("the secrets of a job are missing: what starts from now on gets *** for each", job=job)
        return whole

    def rows(self, state: JobState) -> tuple[RowWrite, ...]:
        """Return what is written of a state: the secrets before it, if they change."""
        secrets = None if state.is_over else _of(state.spec)
        known = self._written.get(state.job)
        if known is None or known.whole is not state.spec:
            known = _Written(state.spec, masked(state.spec))
            if secrets is not None:
                self._written[state.job] = known
        row = RowWrite(table=JOBS, key=state.job, row=msgspec.structs.replace(state, spec=known.masked))
        if secrets == self._stored.get(state.job):
            return (row,)
        return RowWrite(table=JOB_SECRETS, key=state.job, row=secrets), row

    def adopt(self, row: RowWrite) -> None:
        """Take in a row of secrets that was written."""
        if isinstance(row.row, JobSecrets):
            self._stored[row.key] = row.row
        else:
            self._stored.pop(row.key, None)
            self._written.pop(row.key, None)

    def whole(self, written: JobState) -> JobState:
        """Return a state that was written with its secrets again. Those of a job that has ended are gone."""
        known, secrets = self._written.get(written.job), self._stored.get(written.job)
        if secrets is None:
            return written
        if known is not None and known.masked is written.spec:
            return msgspec.structs.replace(written, spec=known.whole)
        spec = msgspec.structs.replace(written.spec, env=secrets.env, token=secrets.token)
        return msgspec.structs.replace(written, spec=spec)


def _of(spec: JobSpec) -> JobSecrets | None:
    return JobSecrets(env=spec.env, token=spec.token) if spec.env or spec.token else None
