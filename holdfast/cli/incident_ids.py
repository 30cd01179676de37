"""Incidents as people name them: `last`, their number, or the beginning of their id."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import click

from holdfast.cli.connect.database import Connection, as_dicts

LAST = "last"

NUMBERED = """
select key, min(job) as job, coalesce(min(opened_at), min(at)) as opened_at,
       row_number() over (order by coalesce(min(opened_at), min(at)), key) as number from (
    select key, job, opened_at, null as at from controller.incidents
    union all
    select incident::text, job, null, at from historian.events where type = 'incident_opened'
) known group by key
"""
"""All incidents, numbered from the oldest that is still recorded: numbers become smaller when old ones are dropped."""

# After a restore of the database the record has incidents that the controller does not know. It never closes them.
_RECENT = f"""
with recent as (select * from ({NUMBERED}) known where $1::text is null or job = $1 order by number desc limit $2)
select r.number, r.key as incident, r.job, r.opened_at, coalesce(c.closed_at, h.closed_at) as closed_at,
       coalesce(c.symptom, h.symptom) as symptom, coalesce(c.summary, h.summary) as summary,
       h.node, h.rank, h.nodes_evicted, coalesce(c.attempts, h.attempts) as attempts,
       coalesce(c.outcome, case when c.key is not null then 'open' else nullif(h.outcome, 'open') end, 'unknown')
           as outcome,
       h.lost_steps, h.seconds_to_recover, h.incident is not null as has_record
from recent r
left join controller.incidents c on c.key = r.key
left join lateral (select * from historian.incidents h where h.incident = r.key::uuid limit 1) h on true
order by r.number desc
"""

_NUMBERS = f"select key, number from ({NUMBERED}) n where key = any($1::text[])"

# Ids begin with the time, and so with 0: no number is the beginning of one.
_MATCHING = f"""
with known as ({NUMBERED})
select key from known
where case when $1 = '{LAST}' then number = (select max(number) from known)
           when $1 ~ '^[1-9][0-9]*$' then number::text = $1
           else key like $1 || '%' end
order by key limit 10
"""


async def recent_incidents(connection: Connection, job: str | None, limit: int) -> list[dict[str, Any]]:
    """Return the newest incidents, newest first: those of `job`, None for all."""
    return as_dicts(await connection.fetch(_RECENT, job, limit))


def checked_incident(incident: str) -> str:
    """Return the name in lower case. Raises click.UsageError if it cannot name an incident."""
    name = incident.lower()
    if name != LAST and not re.fullmatch(r"[0-9a-f-]{1,36}", name):
        raise click.UsageError(f"{incident!r} is not the id of an incident; `holdfast incidents` lists them")
    return name


async def numbers_of(connection: Connection, keys: Iterable[str]) -> dict[str, int]:
    """Return the numbers of incidents, by their ids."""
    return {row["key"]: row["number"] for row in await connection.fetch(_NUMBERS, sorted(set(keys)))}


def number_or_id(incident: str, number: int | None) -> str:
    """Return what a person types for an incident: its number, or its id where no number is known."""
    return incident if number is None else str(number)


async def full_id(connection: Connection, name: str) -> str:
    """Return the id of the incident with this name. Raises click.ClickException unless there is exactly one."""
    keys = [row["key"] for row in await connection.fetch(_MATCHING, name)]
    if not keys:
        what = "there is no incident yet" if name == LAST else f"no incident has the number or begins with {name}"
        raise click.ClickException(f"{what}; `holdfast incidents` lists them")
    if len(keys) > 1:
        numbers = await numbers_of(connection, keys)
        named = ", ".join(f"{key} ({numbers[key]})" for key in keys)
        raise click.ClickException(f"{name} matches {named}: give more of the id, or the incident's number")
    key: str = keys[0]
    return key
