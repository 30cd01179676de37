"""The state of a cluster at one moment, as `holdfast top` shows it. Pure."""

from __future__ import annotations

from datetime import datetime

import msgspec

from holdfast.cli.doctor.finding import Finding
from holdfast.cli.output.overview import JobLine, Overview


class JobDetail(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of a job that take longer to read than its step."""

    nodes: int = 0
    loss: float | None = None
    """None: not known."""
    ettr: float | None = None
    """Productive share of its time, 0 to 1; None: not known."""
    incidents: int = 0
    lost_steps: int | None = None
    """Steps that were trained twice; None: not known."""


class TopNode(msgspec.Struct, frozen=True, kw_only=True):
    node: str
    state: str
    job: str | None = None
    reason: str = ""
    alerts: tuple[str, ...] = ()
    """Alerts of its inspections that last."""


class TopIncident(msgspec.Struct, frozen=True, kw_only=True):
    """One of the newest incidents; `seconds` from the fault until training resumed, or until now, by phase."""

    number: int
    incident: str
    job: str
    opened_at: datetime
    symptom: str
    outcome: str
    summary: str = ""
    lost_steps: int | None = None
    phases: dict[str, float] = {}

    @property
    def seconds(self) -> float:
        return sum(self.phases.values())


class Details(msgspec.Struct, frozen=True, kw_only=True):
    """The part that is read more rarely."""

    jobs: dict[str, JobDetail] = {}
    nodes: tuple[TopNode, ...] = ()
    """Those that need a look first, and not more than can be shown."""
    incidents: tuple[TopIncident, ...] = ()
    """The newest first."""
    problems: tuple[str, ...] = ()


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that one screen of `holdfast top` is drawn from."""

    at: datetime
    overview: Overview
    details: Details = Details()
    findings: tuple[Finding, ...] = ()
    """Findings of `holdfast doctor`, without its checks that take long."""

    def detail(self, job: JobLine) -> JobDetail:
        return self.details.jobs.get(job.job, JobDetail())

    @property
    def nodes_total(self) -> int:
        return sum(self.overview.nodes.values())

    @property
    def problems(self) -> tuple[str, ...]:
        """Sources that do not answer."""
        return tuple(dict.fromkeys((*self.overview.problems, *self.details.problems)))
