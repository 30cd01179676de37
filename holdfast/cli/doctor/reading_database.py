"""Reading of the database for `holdfast doctor`, within a limit of time."""

from __future__ import annotations

import asyncio
import time
from datetime import datetime

import asyncpg
import msgspec

from holdfast.cli.connect.database import Connection, DatabaseUnreachable, reading
from holdfast.cli.doctor.facts import (
    DatabaseFacts,
    ForeignEvents,
    JobOdds,
    JobRow,
    NodeRow,
    Outbox,
    PublishedMessage,
    WentBack,
)
from holdfast.clock import Now

DATABASE_S_MAX = 10.0

_SCHEMAS = {"controller": "controller", "analyzer": "analyzer", "standby": "standby", "ckpt-coordinator": "ckpt"}

_OUTBOX = """
select count(*) as waiting, extract(epoch from clock_timestamp() - min(said_at))::float8 as oldest_s
from {schema}.outbox where published_at is null
"""
_PUBLISHED = """
select distinct on (stream) stream, sequence, id from {schema}.outbox
where sequence is not null and published_at > now() - interval '12 hours' order by stream, sequence desc
"""
_WENT_BACK = """
select body->>'stream' as stream, count(distinct source) as publishers,
       extract(epoch from clock_timestamp() - max(at))::float8 as ago_s
from historian.events where type = 'bus_went_back'
  and at between now() - interval '1 day' and now() + interval '1 hour' group by 1 order by 1
"""
_NODES = """
select key as node, state, coalesce(reason, '') as reason,
       extract(epoch from clock_timestamp() - updated_at)::float8 as unchanged_s
from standby.nodes order by key
"""
_JOBS = """
select j.key as job, j.phase, extract(epoch from clock_timestamp() - j.updated_at)::float8 as unchanged_s, c.wanted,
       (select count(*) from standby.nodes where state = 'standby') as free,
       extract(epoch from clock_timestamp() - s.at)::float8 as step_seen_s, t.step_s,
       coalesce(r.root_because, '') as root_because, coalesce(u.users, '{}') as users,
       coalesce(w.reason, '') as slow_because, coalesce(p.reason, '') as waits_because,
       array(select w.reason
             from standby.nodes n
             join controller.node_records k on k.key = n.key and k.chance >= 0.5
             cross join lateral (
                 select e.body->>'reason' as reason from historian.events e
                 where e.type = 'withheld' and e.job = j.key and e.node = n.key and e.at > now() - interval '1 day'
                   and e.body->>'mechanism' = 'no_replacement' order by e.at desc limit 1
             ) w where n.job = j.key order by n.key) as unreplaced,
       array(select f.thing || ', seen by ' || array_to_string(f.nodes, ', ') from historian.shared_faults f
             where f.job = j.key and f.closed_at is null order by f.opened_at) as shared_faults
from controller.jobs j
left join standby.claims c on c.job = j.key and c.granted_at is null
left join lateral (
    select e.at from historian.events e
    where e.type = 'steps_measured' and e.job = j.key and e.generation = j.generation order by e.at desc limit 1
) s on true
left join lateral (
    select t.step_s from historian.throughput t where t.job = j.key and t.generation = j.generation
    order by t.at desc limit 1
) t on true
left join lateral (
    select e.body->>'root_because' as root_because from historian.events e
    where e.type = 'ranks_started' and e.job = j.key and e.generation = j.generation
    order by e.body ? 'root_because' desc, e.at desc limit 1
) r on true
left join lateral (
    select array_agg(distinct coalesce(e.body->>'user', '')) as users from historian.events e
    where e.type = 'ranks_started' and e.job = j.key and e.generation = j.generation and not e.body ? 'adopted'
) u on true
left join lateral (
    select case when e.type = 'withheld' then e.body->>'reason' end as reason from historian.events e
    where e.job = j.key and e.generation = j.generation
      and (e.type = 'withheld' and e.body->>'mechanism' = 'no_way_to_resume' or e.type = 'fail_slow_relieved')
    order by e.at desc limit 1
) w on true
left join lateral (
    select e.body->>'reason' as reason from historian.events e
    where e.type = 'suspension' and e.job = j.key order by e.at desc limit 1
) p on j.phase = 'waiting'
where j.exit_code is null
order by j.submitted_at
"""
_ODDS = """
select key as job, reason, coalesce(body->'odds', '[]') as plans,
       coalesce((body->'kept'->>'every')::bigint, 1) as kept_every,
       exists (select from ckpt.shards s where s.job = p.key) as is_kept
from ckpt.plans p order by key
"""
_OPEN_DATABASES = """
select quote_ident(datname) as name from pg_database
where datname <> current_database() and datallowconn and has_database_privilege('public', oid, 'connect') order by 1
"""
# After a minute, what came before the start of its generation is with the other events.
_FOREIGN = """
select node, job, count(*) as count, min(type) as type from historian.foreign_events
where recorded_at between now() - interval '1 day' and now() - interval '1 minute'
group by node, job order by count(*) desc, node limit 20
"""
_CHECKPOINTS = "select distinct on (job) path from ckpt.steps order by job, step desc"


async def read_database(url: str, now: Now) -> tuple[DatabaseFacts | None, str]:
    """Return what the database has, or None and the reason."""
    try:
        async with asyncio.timeout(DATABASE_S_MAX), reading(url) as connection:
            return await _read(connection, now), ""
    except DatabaseUnreachable as error:
        return None, error.message.partition(". `holdfast status`")[0]
    except (asyncpg.UndefinedTableError, asyncpg.UndefinedColumnError, asyncpg.InvalidSchemaNameError) as error:
        return None, f"the database has no tables of this version of Holdfast ({error}); `holdfast migrate` makes them"
    except TimeoutError:
        return None, f"the database does not answer within {DATABASE_S_MAX:g} s"
    except (OSError, asyncpg.PostgresConnectionError, asyncpg.InterfaceError) as error:
        return None, f"the connection to the database was lost: {error}"
    except asyncpg.PostgresError as error:
        return None, f"the database refuses to be read: {error}"


async def _read(connection: Connection, now: Now) -> DatabaseFacts:
    outboxes, published = [], []
    for service, schema in _SCHEMAS.items():
        row = await connection.fetchrow(_OUTBOX.format(schema=schema))
        if row is not None and row["waiting"]:
            outboxes.append(Outbox(service=service, waiting=row["waiting"], oldest_s=row["oldest_s"]))
        rows = await connection.fetch(_PUBLISHED.format(schema=schema))
        published += [msgspec.convert({"service": service, **row}, PublishedMessage) for row in rows]
    return DatabaseFacts(
        ahead_s=await _ahead_s(connection, now),
        outboxes=tuple(outboxes),
        published=tuple(published),
        went_back=tuple([msgspec.convert(dict(row), WentBack) for row in await connection.fetch(_WENT_BACK)]),
        nodes=tuple([msgspec.convert(dict(row), NodeRow) for row in await connection.fetch(_NODES)]),
        jobs=tuple([msgspec.convert(dict(row), JobRow) for row in await connection.fetch(_JOBS)]),
        odds=tuple([msgspec.convert(dict(row), JobOdds) for row in await connection.fetch(_ODDS)]),
        checkpoint_paths=tuple([row["path"] for row in await connection.fetch(_CHECKPOINTS)]),
        foreign=tuple([msgspec.convert(dict(row), ForeignEvents) for row in await connection.fetch(_FOREIGN)]),
        open_databases=tuple([row["name"] for row in await connection.fetch(_OPEN_DATABASES)]),
    )


async def _ahead_s(connection: Connection, now: Now) -> float:
    timed = Timed(now)
    return timed.ahead_s(await connection.fetchval("select clock_timestamp()"))


class Timed:
    """The time at which a remote clock was read: half-way between question and answer."""

    def __init__(self, now: Now) -> None:
        self._asked_at = now()
        self._began_s = time.monotonic()

    def ahead_s(self, remote: datetime) -> float:
        """Return the time by which a remote clock is ahead of this machine's; to be called when it has answered."""
        took_s = time.monotonic() - self._began_s
        return (remote - self._asked_at).total_seconds() - took_s / 2
