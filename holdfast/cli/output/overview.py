"""Overview of the cluster: nodes, jobs, open incidents, dead letters. A source that does not answer is reported."""

from __future__ import annotations

import asyncio
from datetime import datetime

import asyncpg
import msgspec

from holdfast.bus import BusError, BusUnavailable
from holdfast.bus.nats import connect
from holdfast.cli.connect.bus import require_addresses
from holdfast.cli.connect.command_tls import network_policy
from holdfast.cli.connect.database import Connection, DatabaseUnreachable, reading
from holdfast.cli.incident_ids import number_or_id, numbers_of
from holdfast.cli.output.kept_steps import repeated_max
from holdfast.cli.output.open_claims import OpenClaim, open_claims
from holdfast.cli.output.pace import pace_text
from holdfast.cli.output.tables import printable, render
from holdfast.subjects import DEAD_LETTER_STREAM

NATS_TIMEOUT_S = 3.0

_NODES = "select state, count(*) as nodes from standby.nodes group by state order by state"
_JOBS = """
select c.key as job, c.phase, c.generation, c.incident, h.last_step, t.step_s, t.tokens_per_s, t.mfu, p.reason,
       coalesce((k.body->'kept'->>'every')::bigint, 1) as kept_every,
       coalesce(k.body->'kept'->>'reason', '') as kept_why
from controller.jobs c left join lateral (select * from historian.jobs h where h.job = c.key limit 1) h on true
left join lateral (
    select * from historian.throughput t where t.job = c.key and t.generation = c.generation order by t.at desc limit 1
) t on true
left join lateral (
    select e.body->>'reason' as reason from historian.events e
    where e.type = 'suspension' and e.job = c.key order by e.at desc limit 1
) p on c.phase = 'waiting'
left join ckpt.plans k on k.key = c.key and k.generation = c.generation
where c.exit_code is null
order by c.submitted_at
"""
_INCIDENTS = """
select key as incident, job, opened_at, symptom, summary, attempts
from controller.incidents where closed_at is null order by opened_at
"""
_WENT_BACK = """
select body->>'stream' as stream, count(distinct source)::int as publishers, max(at) as at
from historian.events where type = 'bus_went_back'
  and at between now() - interval '1 day' and now() + interval '1 hour' group by 1 order by 1
"""
_REJECTED = "select * from historian.dead_letters order by at desc limit 5"


class JobLine(msgspec.Struct, frozen=True, kw_only=True):
    """A job that has not ended. Its pace is None where it is not known."""

    job: str
    phase: str
    generation: int
    incident: str | None
    incident_number: int | None = None
    """Number of the open incident in `holdfast incidents`."""
    last_step: int | None
    """None before the first step."""
    step_s: float | None = None
    tokens_per_s: float | None = None
    mfu: float | None = None
    """0 to 1."""
    waits: OpenClaim | None = None
    reason: str | None = None
    """Why its training pauses."""
    kept_every: int = 1
    """Distance of the steps that its ranks keep in memory, since keeping each would cost too much (ADR 58)."""
    kept_why: str = ""

    @property
    def open_incident(self) -> str | None:
        """Number or id of the job's open incident, as `holdfast show` takes it; None: none is open."""
        return number_or_id(self.incident, self.incident_number) if self.incident else None

    @property
    def pace(self) -> str | None:
        return pace_text(self.step_s, self.tokens_per_s, self.mfu)


class IncidentLine(msgspec.Struct, frozen=True, kw_only=True):
    incident: str
    number: int | None = None
    """Number of the incident in `holdfast incidents`."""
    job: str
    opened_at: datetime
    symptom: str
    summary: str
    attempts: int


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """The newest message that a consumer could not handle, with the subject that it arrived on."""

    at: datetime | None
    consumer: str
    subject: str
    error: str
    body_bytes: int


class Rejection(msgspec.Struct, frozen=True, kw_only=True):
    """A rejected message as the historian recorded it."""

    at: datetime
    consumer: str
    subject: str
    error: str
    body_bytes: int
    deliveries: int


class LossOfBus(msgspec.Struct, frozen=True, kw_only=True):
    """A stream of the bus that lost messages within a day; `publishers` published theirs again, the last one `at`."""

    stream: str
    publishers: int
    at: datetime


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """Overview of the cluster. `problems` names the sources that did not answer; their fields are empty."""

    nodes: dict[str, int] = {}
    jobs: tuple[JobLine, ...] = ()
    open_incidents: tuple[IncidentLine, ...] = ()
    dead_letters: int | None = None
    newest_dead_letter: DeadLetter | None = None
    rejections: tuple[Rejection, ...] = ()
    losses_of_bus: tuple[LossOfBus, ...] = ()
    problems: tuple[str, ...] = ()


async def cluster_overview(database_url: str, nats_url: str) -> Overview:
    """Read database and bus concurrently; one that does not answer becomes a problem of the overview."""
    truth, letters = await asyncio.gather(_from_database(database_url), _from_bus(nats_url))
    return msgspec.structs.replace(
        truth,
        dead_letters=letters.dead_letters,
        newest_dead_letter=letters.newest_dead_letter,
        problems=truth.problems + letters.problems,
    )


def overview_section(overview: Overview) -> str:
    """Return the overview as text."""
    nodes = printable(", ".join(f"{count} {state}" for state, count in sorted(overview.nodes.items()))) or "none yet"
    parts = [f"Nodes: {nodes}"]
    if overview.jobs:
        rows = [
            [job.job, job.phase, job.generation, job.last_step, job.pace, job.open_incident] for job in overview.jobs
        ]
        parts.append(render(["JOB", "PHASE", "GENERATION", "STEP", "PACE", "INCIDENT"], rows))
        parts += [printable(f"Job {job.job} {job.waits}") for job in overview.jobs if job.waits]
        parts += [printable(f"Job {job.job}: {job.reason}") for job in overview.jobs if job.reason]
        parts += [printable(f"Job {job.job}: {_kept(job)}") for job in overview.jobs if job.kept_every > 1]
    else:
        parts.append("Jobs: none running")
    for incident in overview.open_incidents:
        name = number_or_id(incident.incident, incident.number)
        parts.append(printable(f"Open incident {name} of job {incident.job}: {incident.summary}"))
    if overview.dead_letters:
        newest = overview.newest_dead_letter
        about = f"; newest: from {newest.subject}, rejected by {newest.consumer}: {newest.error}" if newest else ""
        parts.append(printable(f"Dead letters: {overview.dead_letters} messages that could not be handled{about}"))
    parts += [
        printable(
            f"The bus lost messages of stream {loss.stream} at {loss.at:%Y-%m-%d %H:%M:%S} UTC; "
            f"{loss.publishers} publishers published theirs again: was the disk of NATS replaced or put back?"
        )
        for loss in overview.losses_of_bus
    ]
    parts += [printable(f"Not available: {problem}") for problem in overview.problems]
    return "\n".join(parts)


def _kept(job: JobLine) -> str:
    return f"{job.kept_why}. A restart trains up to {repeated_max(job.kept_every)} steps again"


async def _from_database(database_url: str) -> Overview:
    try:
        async with reading(database_url) as connection:
            return await database_overview(connection)
    except DatabaseUnreachable as error:
        return Overview(problems=(error.message,))
    except (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError) as error:
        return Overview(problems=(f"the database has no tables of this version of Holdfast: {error}",))
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        return Overview(problems=(f"the connection to the database was lost: {error}",))


async def database_overview(connection: Connection) -> Overview:
    """Read the part that is in the database."""
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        nodes = {row["state"]: row["nodes"] for row in await connection.fetch(_NODES)}
        claims = await open_claims(connection)
        job_rows, incident_rows = await connection.fetch(_JOBS), await connection.fetch(_INCIDENTS)
        open_ids = [row["incident"] for row in (*job_rows, *incident_rows) if row["incident"]]
        # They are numbered among all incidents that are known: not for nothing.
        numbers = await numbers_of(connection, open_ids) if open_ids else {}
        jobs = [
            msgspec.convert(
                dict(row) | {"waits": claims.get(row["job"]), "incident_number": numbers.get(row["incident"])}, JobLine
            )
            for row in job_rows
        ]
        incidents = [
            msgspec.convert(dict(row) | {"number": numbers.get(row["incident"])}, IncidentLine) for row in incident_rows
        ]
        losses = [msgspec.convert(dict(row), LossOfBus) for row in await connection.fetch(_WENT_BACK)]
        rejected = [msgspec.convert(dict(row), Rejection) for row in await connection.fetch(_REJECTED)]
    return Overview(
        nodes=nodes,
        jobs=tuple(jobs),
        open_incidents=tuple(incidents),
        rejections=tuple(rejected),
        losses_of_bus=tuple(losses),
    )


async def _from_bus(nats_url: str) -> Overview:
    require_addresses(nats_url)
    try:
        bus = await connect(nats_url, "holdfast status", network=network_policy(), timeout_s=NATS_TIMEOUT_S)
        try:
            state = await bus.stream_state(DEAD_LETTER_STREAM)
        finally:
            await bus.close()
    except BusUnavailable as error:
        return Overview(problems=(f"the bus does not answer: {error}",))
    except BusError as error:
        return Overview(problems=(f"the bus refuses: {error}",))
    newest = None
    if state.newest is not None:
        newest = DeadLetter(
            at=state.newest_at,
            consumer=state.newest.subject.rpartition(".")[2],
            subject=state.newest.headers.get("Holdfast-Subject", ""),
            error=state.newest.headers.get("Holdfast-Error", ""),
            body_bytes=len(state.newest.body),
        )
    return Overview(dead_letters=state.messages, newest_dead_letter=newest)
