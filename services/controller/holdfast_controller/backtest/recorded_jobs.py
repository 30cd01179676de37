"""The record as a backtest reads it: the jobs that match, and what the controller saw and decided about each."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

from holdfast import events
from holdfast.code.manifest import InvalidManifest, Manifest, decode
from holdfast.engines.checks.checks_program import PROGRAM
from holdfast.events import AnyEvent, Event, NodeReleaseRequested, UnreadableEvent
from holdfast.store.connections import Connection, Connections, translated
from holdfast_controller.backtest.inputs import Seen
from holdfast_controller.plan.draft import SOURCE
from holdfast_controller.plan.planner import SUBSCRIPTIONS

READ_S = 600.0
_MARGIN = timedelta(minutes=1)
_SKEW = timedelta(days=1)
"""A process whose clock was set dates an event of a job before its beginning or after its end."""
_SEEN_KINDS: tuple[type[Event], ...] = (*SUBSCRIPTIONS, NodeReleaseRequested)

_JOBS = """
select job, min(at) as submitted_at,
    (select max(at) from historian.events f where f.type = 'job_finished' and f.job = e.job) as finished_at
from historian.events e
where type = 'job_submitted' and body->'spec'->>'script' <> $3
    and ($1::text is null or job = $1)
    and ($2::timestamptz is null
        or job in (select job from historian.events where type = 'incident_opened' and at >= $2))
group by job order by 2
"""
_DECISIONS = """
select body::text from historian.events
where job = $1 and source = $2 and class in ('decision', 'finding')
    and at between $3::timestamptz - $5::interval and $4::timestamptz + $5::interval
"""
_NODES = """
select distinct node.name from historian.events, jsonb_array_elements_text(body->'nodes') as node(name)
where type = 'generation_started' and job = $1
"""
_SEEN = """
select e.body::text, (select min(handled_at) from controller.inbox i where i.id = e.id::text)
from historian.events e
where e.type = any($1) and e.at between $4::timestamptz - $6::interval and $5::timestamptz + $6::interval
    and (e.job = $2 or (e.job is null and e.node = any($3) and coalesce(
        (select min(handled_at) from controller.inbox i where i.id = e.id::text), e.at) between $4 and $5))
"""
_MANIFESTS = """
select v.code as version, c.content from controller.code_versions v join controller.code_contents c on c.sha256 = v.code
where v.job = $1
"""


class JobRecord(NamedTuple):
    """One job's record."""

    job: str
    seen: list[Seen]
    decisions: list[AnyEvent]
    manifests: Mapping[str, Manifest]
    unreadable: int
    """Number of events of a version that this one cannot read."""


class RecordedJob(NamedTuple):
    """A job in the record. `finished_at` is None while it runs."""

    name: str
    submitted_at: datetime
    finished_at: datetime | None


class Record:
    """A connection that only reads."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    @classmethod
    async def connect(cls, url: str) -> Record:
        """Prepare for use; `jobs` and `read` raise StoreUnavailable or NotMigrated without a database."""
        connections = await Connections.prepare(
            url, "holdfast-whatif", most=1, command_timeout_s=READ_S, default_transaction_read_only="on"
        )
        return cls(connections)

    async def close(self) -> None:
        await self._connections.close()

    async def jobs(self, job: str | None, since: datetime | None) -> list[RecordedJob]:
        """Return the training jobs of this name, and with an incident since then."""
        async with self._connections.one() as connection:
            with translated():
                return [RecordedJob(*row) for row in await connection.fetch(_JOBS, job, since, PROGRAM)]

    async def read(self, job: RecordedJob, until: datetime) -> JobRecord:
        """Read all that concerns one job."""
        span = (job.submitted_at - _MARGIN, (job.finished_at or until) + _MARGIN)
        kinds = [str(kind.__struct_config__.tag) for kind in _SEEN_KINDS]
        async with self._connections.one() as connection:
            with translated():
                decisions = await connection.fetch(_DECISIONS, job.name, SOURCE, *span, _SKEW)
                nodes = [row[0] for row in await connection.fetch(_NODES, job.name)]
                seen = await connection.fetch(_SEEN, kinds, job.name, nodes, *span, _SKEW)
                manifests = await _manifests(connection, job.name)
        readable = _Readable()
        return JobRecord(
            job=job.name,
            decisions=[event for row in decisions if (event := readable.event(row[0])) is not None],
            seen=[Seen(event, row[1]) for row in seen if (event := readable.event(row[0])) is not None],
            manifests=manifests,
            unreadable=readable.failures,
        )


class _Readable:
    def __init__(self) -> None:
        self.failures = 0

    def event(self, body: str) -> AnyEvent | None:
        try:
            return events.decode(body.encode())
        except UnreadableEvent:
            self.failures += 1
            return None


async def _manifests(connection: Connection, job: str) -> dict[str, Manifest]:
    found: dict[str, Manifest] = {}
    for row in await connection.fetch(_MANIFESTS, job):
        try:
            found[row["version"]] = decode(bytes(row["content"]))
        except InvalidManifest:
            continue
    return found
