"""SQL that keeps apart what nodes publish about jobs that they do not belong to.

The rule is that of `holdfast.daemon.jobs.job_nodes`. All of it is one transaction with the rows that are written, so
that the order in which events arrive makes no difference: what came before the start of its generation is judged again
with it. About a job of which nothing has begun, events of any node are accepted until then.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import get_args

from holdfast.bus.accounts import ACTIONS_OF_NODES
from holdfast.daemon.jobs.job_nodes import NAMING
from holdfast.events import (
    AnyEvidence,
    AnyMetric,
    CodeInPlace,
    CodeNotInPlace,
    Event,
    OrderRefused,
    Progress,
    StepsMeasured,
)
from holdfast.store.connections import Connection
from holdfast_historian.rows import EventRow


def _tags(kinds: Iterable[type[Event]]) -> str:
    return ", ".join(f"'{kind.__struct_config__.tag}'" for kind in kinds)


_NAMING = frozenset(kind.__struct_config__.tag for kind in NAMING)

# Nodes publish these before they run ranks of a job, or after.
_OF_ANY_NODE = _tags((CodeInPlace, CodeNotInPlace, OrderRefused))

_IS_OF_NODE = f"""
    e.job is not null and e.node is not null
    and (e.class in ('evidence', 'metric') or e.type in ({_tags(ACTIONS_OF_NODES)})) and e.type not in ({_OF_ANY_NODE})
"""
_IS_MEMBER = "n.job = e.job and n.node = e.node and coalesce(e.generation, 0) <= n.generation"

_COLUMNS = "id, at, class, type, source, job, generation, node, cause, incident, body, summary"

INSERT = f"""
with given as (
    select * from unnest($1::uuid[], $2::timestamptz[], $3::text[], $4::text[], $5::text[], $6::text[], $7::bigint[],
                         $8::text[], $9::uuid[], $10::uuid[], $11::jsonb[], $12::text[]) as e({_COLUMNS})
), judged as (
    -- Joins: a subquery would read all nodes of the job for each row.
    select e.*, {_IS_OF_NODE} and j.job is not null and n.job is null as is_foreign
    from given e
    left join historian.job_nodes n on {_IS_MEMBER}
    left join (select distinct job from historian.job_nodes where job = any($6::text[])) j on j.job = e.job
), apart as (
    insert into historian.foreign_events ({_COLUMNS})
    select {_COLUMNS} from judged where is_foreign on conflict do nothing
)
insert into historian.events ({_COLUMNS}) select {_COLUMNS} from judged where not is_foreign on conflict do nothing
"""

_NAMED = """
insert into historian.job_nodes (job, node, generation, at)
select job, node, max(generation), max(at) from (
    select e.job, n.node, e.generation, e.at
    from unnest($1::text[], $2::bigint[], $3::timestamptz[], $4::jsonb[], $5::text[])
             as e(job, generation, at, body, type),
         jsonb_array_elements_text(case e.type when 'replay_started' then jsonb_path_query_array(
             e.body, '$.groups[*][*]') else e.body->'nodes' end) as n(node)
    where e.job is not null and e.generation is not null
) named
group by job, node
on conflict (job, node) do update
set generation = greatest(job_nodes.generation, excluded.generation), at = greatest(job_nodes.at, excluded.at)
"""

_KNOWN = "select distinct job from historian.job_nodes where job = any($1::text[])"

_BACK = f"""
with moved as (
    delete from historian.foreign_events e using historian.job_nodes n
    where e.job = any($1::text[]) and {_IS_MEMBER} returning e.*
)
insert into historian.events select * from moved on conflict do nothing
"""

_SAMPLED = (Progress, StepsMeasured)

# No view reads `progress`, which no index finds.
_AWAY = f"""
with moved as (
    delete from historian.events e
    where e.job = any($1::text[]) and {{which}} and {_IS_OF_NODE}
      and not exists (select from historian.job_nodes n where {_IS_MEMBER})
    returning *
)
insert into historian.foreign_events select * from moved on conflict do nothing
"""
_AWAY_SAMPLES = _AWAY.format(which="e.type = 'steps_measured'")
# The index of the others begins with the type.
_OTHERS = _tags(kind for kind in (*get_args(AnyEvidence | AnyMetric), *ACTIONS_OF_NODES) if kind not in _SAMPLED)
_AWAY_OTHERS = _AWAY.format(which=f"e.type in ({_OTHERS}) and e.type <> 'progress' and e.type <> 'steps_measured'")


async def write(connection: Connection, rows: list[EventRow]) -> None:
    """Write rows, each to the events or apart from them; to be called in a transaction."""
    # Generation 0 never begins: what is released in it was only granted.
    named = [row for row in rows if row.type in _NAMING and row.generation]
    jobs = {row.job for row in named if row.job is not None}
    known = {record["job"] for record in await connection.fetch(_KNOWN, [*jobs])} if jobs else set()
    if named:
        fields = ([row.job for row in named], [row.generation for row in named], [row.at for row in named])
        await connection.execute(_NAMED, *fields, [row.body for row in named], [row.type for row in named])
    await connection.execute(INSERT, *zip(*rows, strict=True))
    if jobs:
        await connection.execute(_BACK, [*jobs])
    if new := [*(jobs - known)]:
        await connection.execute(_AWAY_SAMPLES, new)
        await connection.execute(_AWAY_OTHERS, new)
