"""Incidents as people name them: `last`, their number, or the beginning of their id."""

from __future__ import annotations

import re

import click

from holdfast.cli.connect.database import Connection

LAST = "last"

NUMBERED = """
select key, row_number() over (order by coalesce(min(opened_at), min(at)), key) as number from (
    select key, opened_at, null as at from controller.incidents
    union all
    select incident::text, null, at from historian.events where type = 'incident_opened'
) known group by key
"""
"""All incidents, numbered from the oldest that is still recorded."""

_MATCHING = f"""
with known as ({NUMBERED})
select key from known
where case when $1 = '{LAST}' then number = (select max(number) from known)
           when $1 ~ '^[1-9][0-9]*$' then number::text = $1
           else key like $1 || '%' end
order by key limit 10
"""


def checked_incident(incident: str) -> str:
    """Return the name in lower case. Raises click.UsageError if it cannot name an incident."""
    name = incident.lower()
    # Ids begin with the time, and so with 0: no number is the beginning of one.
    if name != LAST and not re.fullmatch(r"[0-9a-f-]{1,36}", name):
        raise click.UsageError(f"{incident!r} is not the id of an incident; `holdfast incidents` lists them")
    return name


async def full_id(connection: Connection, name: str) -> str:
    """Return the id of the incident with this name. Raises click.ClickException unless there is exactly one."""
    keys = [row["key"] for row in await connection.fetch(_MATCHING, name)]
    if not keys:
        what = "there is no incident yet" if name == LAST else f"no incident has the number or begins with {name}"
        raise click.ClickException(f"{what}; `holdfast incidents` lists them")
    if len(keys) > 1:
        raise click.ClickException(f"{name} matches {', '.join(keys)}: give more of the id, or the incident's number")
    key: str = keys[0]
    return key
