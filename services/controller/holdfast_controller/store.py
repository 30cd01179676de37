"""The controller's rows: a job's state, its secrets apart from it, and a record of each incident for people."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from holdfast.engines.checks.references import Reference
from holdfast.engines.record.chance import chance_of
from holdfast.engines.record.history import NodeRecord
from holdfast.store import Table
from holdfast_controller.plan.code.code_state import CodeVersion
from holdfast_controller.plan.incident.incident import RungTaken
from holdfast_controller.plan.job import JobState
from holdfast_controller.plan.phase import Ended


class IncidentRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An incident as people read it; open ones are written again with each change."""

    id: str
    job: str
    opened_at: datetime
    symptom: str
    summary: str
    attempts: int
    blamed: dict[str, int]
    taken: tuple[RungTaken, ...] = ()
    closed_at: datetime | None = None
    outcome: str | None = None
    """None while it is open."""


class VersionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A version of a job's code as people read it."""

    job: str
    about: CodeVersion


class ReferenceRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An answer of a stop-time test that several machines agreed on, in the checks of `job`."""

    reference: Reference
    job: str
    agreed_at: datetime


class JobSecrets(msgspec.Struct, frozen=True, kw_only=True):
    """Secrets of a job that has not ended, stored apart from its state (ADR 55). The key is the job's name."""

    env: dict[str, str]
    token: str


class UsedName(msgspec.Struct, frozen=True, kw_only=True):
    """The record that remains of a deleted job: its name, which is the key, stays reserved."""

    ended_at: datetime


def _job_columns(state: JobState) -> dict[str, Any]:
    return {
        "phase": state.phase_name,
        "generation": state.generation,
        "incident": state.incident.id if state.incident else None,
        "exit_code": exit_code_of(state),
        "submitted_at": state.submitted_at,
        "code_version": state.code.version,
        "code_waits": state.code.pending.version if state.code.pending else None,
    }


def exit_code_of(state: JobState) -> int | None:
    """Return a job's exit code; None before its end."""
    return state.phase.exit_code if isinstance(state.phase, Ended) else None


def _incident_columns(record: IncidentRecord) -> dict[str, Any]:
    return {
        "job": record.job,
        "opened_at": record.opened_at,
        "closed_at": record.closed_at,
        "symptom": record.symptom,
        "outcome": record.outcome,
        "attempts": record.attempts,
        "summary": record.summary,
    }


def version_key(job: str, version: str) -> str:
    """Return the key of a version's record: each job has its own verdict on the same code."""
    return f"{job}/{version}"


def _version_columns(record: VersionRecord) -> dict[str, Any]:
    about = record.about
    return {
        "job": record.job,
        "code": about.version,
        "number": about.number,
        "verdict": about.verdict.value,
        "created_at": about.created_at,
    }


def _reference_columns(record: ReferenceRecord) -> dict[str, Any]:
    key = record.reference.key
    return {
        "test": key.test,
        "hardware": key.hardware,
        "program": key.program,
        "digest": record.reference.digest,
        "agreed_at": record.agreed_at,
    }


def _record_columns(record: NodeRecord) -> dict[str, Any]:
    return {
        "chance": None if record.log_odds is None else chance_of(record.log_odds),
        "failures": sum(mark.counts for mark in record.marks),
        "last_at": record.as_of,
    }


JOBS = Table(name="jobs", row_type=JobState, columns=_job_columns, changes="job_changes")
JOB_SECRETS = Table(name="job_secrets", row_type=JobSecrets, columns=lambda secrets: {})
USED_NAMES = Table(name="used_names", row_type=UsedName, columns=lambda used: {"ended_at": used.ended_at})
INCIDENTS = Table(name="incidents", row_type=IncidentRecord, columns=_incident_columns, is_only_written=True)
CODE_VERSIONS = Table(name="code_versions", row_type=VersionRecord, columns=_version_columns, is_only_written=True)
REFERENCES = Table(name="reference_digests", row_type=ReferenceRecord, columns=_reference_columns)
RECORDS = Table(name="node_records", row_type=NodeRecord, columns=_record_columns)
TABLES: tuple[Table[Any], ...] = (JOBS, JOB_SECRETS, USED_NAMES, REFERENCES, RECORDS)
"""Tables that are read at the start; the others are only written."""
