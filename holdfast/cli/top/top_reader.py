"""Reads what `holdfast top` shows: the sources of `holdfast status` and `holdfast doctor`, the slow ones more rarely.

No source takes more than a twentieth of the time: after a reading, it rests for twenty times as long as that took.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from typing import Any, TypeVar

import asyncpg
import click

from holdfast.cli.connect.database import Connection, DatabaseUnreachable, reading, working
from holdfast.cli.doctor.cluster_findings import findings_of
from holdfast.cli.doctor.finding import Finding
from holdfast.cli.doctor.reading_all import read_cluster
from holdfast.cli.doctor.whereabouts import Whereabouts
from holdfast.cli.incident_ids import recent_incidents
from holdfast.cli.output.overview import Overview, database_overview
from holdfast.cli.top.cluster_snapshot import Details, JobDetail, Snapshot, TopIncident, TopNode
from holdfast.clock import Now, system_now

EVERY_S = 1.0
DETAILS_EVERY_S = 5.0
FINDINGS_EVERY_S = 15.0
REST_MULTIPLE = 20
"""Ratio of a source's rest to the time that its last reading took."""
SETTLED_S = 60.0
"""Age of an incident's end from which nothing about it is recorded any more."""
NODES_MAX = 200
"""More do not fit on a screen."""
INCIDENTS_MAX = 20


def _newest_loss(kind: str, name: str) -> str:
    """Return a join: the newest loss in a job's events of one type."""
    return f"""
left join lateral (
    select historian.real((sample->>'loss')::numeric) as loss
    from (select e.body, e.at from historian.events e where e.type = '{kind}' and e.job = k.job
          order by e.generation desc, e.at desc limit 8) newest, jsonb_array_elements(newest.body->'samples') sample
    where sample->>'loss' is not null order by newest.at desc, (sample->>'step')::bigint desc limit 1
) {name} on true"""


_JOBS = f"""
select j.job, j.incidents, j.lost_steps, e.ettr, coalesce(jsonb_array_length(g.body->'nodes'), 0) as nodes,
       coalesce(measured.loss, logged.loss) as loss
from unnest($1::text[]) k(job)
join historian.jobs j on j.job = k.job
left join historian.ettr e on e.job = k.job
left join lateral (
    select e.body from historian.events e
    where e.type = 'generation_started' and e.job = k.job order by e.generation desc limit 1
) g on true
{_newest_loss("steps_measured", "measured")}
{_newest_loss("numbers_logged", "logged")}
"""
_ALERTS = """
select node, array_agg(what order by what) as alerts
from (
    select distinct on (node, body->>'check', body->>'device', body->>'kind')
           node, at, body->>'state' as state, coalesce((body->>'is_momentary')::boolean, false) as is_momentary,
           concat_ws(' ', coalesce(nullif(body->>'symptom', ''), body->>'check'), nullif(body->>'device', '')) as what
    from historian.events
    where type = 'inspection' and node is not null and at > now() - interval '1 day'
    order by node, body->>'check', body->>'device', body->>'kind', at desc
) newest
where state = 'alert' and (not is_momentary or at > now() - interval '10 minutes')
group by node
"""
_NODES = """
select key as node, state, job, coalesce(reason, '') as reason from standby.nodes
order by array_position(array['lost', 'evicted', 'registered', 'checked'], state) nulls last,
         key = any($2::text[]) desc, state, length(key), key
limit $1
"""
_PHASES = """
select p.phase, sum(p.seconds) as seconds from historian.incident_phases p
where p.job = $1 and p.incident = $2::uuid group by p.phase
"""

T = TypeVar("T")


class TopReader:
    """Reads a cluster again and again, over one connection to the database."""

    def __init__(self, where: Whereabouts, now: Now = system_now) -> None:
        self._where = where
        self._now = now
        self._connections = AsyncExitStack()
        self._connection: Connection | None = None
        self._ended_phases: dict[str, dict[str, float]] = {}
        """Phases of closed incidents, which do not change any more."""
        self.overview = Overview()
        self.details = Details()
        self.findings: tuple[Finding, ...] = ()

    def snapshot(self) -> Snapshot:
        """Return what was read last."""
        return Snapshot(at=self._now(), overview=self.overview, details=self.details, findings=self.findings)

    async def read_all(self) -> Snapshot:
        await self.read_overview()
        await asyncio.gather(self.read_details(), self.read_findings())
        return self.snapshot()

    async def keep_reading(self, draw: Callable[[Snapshot], None]) -> None:
        """Read and draw until cancelled."""
        await self.read_overview()
        draw(self.snapshot())
        async with asyncio.TaskGroup() as group:
            group.create_task(self._repeat(self.read_findings, FINDINGS_EVERY_S))
            group.create_task(self._repeat(self.read_details, DETAILS_EVERY_S))

            async def overview() -> None:
                await self.read_overview()
                draw(self.snapshot())

            await self._repeat(overview, EVERY_S)

    async def read_overview(self) -> None:
        try:
            connection = await self._connected()
            async with working(self._where.database_url):
                self.overview = await database_overview(connection)
        except click.ClickException as error:
            await self.close()
            self.overview = Overview(problems=(error.message,))

    async def read_details(self) -> None:
        """Read what takes longer, over a separate connection."""
        try:
            async with reading(self._where.database_url) as connection, working(self._where.database_url):
                self.details = await self._details(connection)
        except click.ClickException as error:
            self.details = Details(problems=(error.message,))

    async def read_findings(self) -> None:
        self.findings = tuple(findings_of(await read_cluster(self._where, listen=False)))

    async def close(self) -> None:
        self._connection = None
        with suppress(DatabaseUnreachable, asyncpg.InterfaceError):
            await self._connections.aclose()

    async def _connected(self) -> Connection:
        if self._connection is None:
            self._connections = AsyncExitStack()
            self._connection = await self._connections.enter_async_context(reading(self._where.database_url))
        return self._connection

    async def _repeat(self, read: Callable[[], Awaitable[None]], every_s: float) -> None:
        while True:
            began = time.monotonic()
            await read()
            await asyncio.sleep(max(every_s, REST_MULTIPLE * (time.monotonic() - began)))

    async def _details(self, connection: Connection) -> Details:
        rows = await connection.fetch(_JOBS, [job.job for job in self.overview.jobs])
        alerts = {row["node"]: tuple(row["alerts"]) for row in await connection.fetch(_ALERTS)}
        nodes = await connection.fetch(_NODES, NODES_MAX, list(alerts))
        recent = await recent_incidents(connection, None, INCIDENTS_MAX)
        return Details(
            jobs={row["job"]: _detail(dict(row)) for row in rows},
            nodes=tuple(TopNode(**dict(row), alerts=alerts.get(row["node"], ())) for row in nodes),
            incidents=tuple([await self._incident(connection, row) for row in recent]),
        )

    async def _incident(self, connection: Connection, row: dict[str, Any]) -> TopIncident:
        key = row["incident"]
        phases = self._ended_phases.get(key)
        if phases is None:
            found = await connection.fetch(_PHASES, row["job"], key)
            phases = {phase["phase"]: phase["seconds"] for phase in found}
            closed_at = row["closed_at"]
            if closed_at is not None and (self._now() - closed_at).total_seconds() > SETTLED_S:
                self._ended_phases[key] = phases
        return TopIncident(
            number=row["number"],
            incident=key,
            job=row["job"],
            opened_at=row["opened_at"],
            symptom=row["symptom"],
            outcome=row["outcome"],
            summary=row["summary"] or "",
            lost_steps=row["lost_steps"] if row["has_record"] else None,
            phases=phases,
        )


def _detail(row: dict[str, Any]) -> JobDetail:
    del row["job"]
    return JobDetail(**row)
