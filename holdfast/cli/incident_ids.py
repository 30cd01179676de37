"""Incidents named by the beginning of their id."""

from __future__ import annotations

import re

import click

from holdfast.cli.connect.database import Connection

_MATCHING = """
select key from controller.incidents where key like $1 || '%'
union
select incident::text from historian.incidents where incident::text like $1 || '%'
order by 1 limit 10
"""


def checked_prefix(incident: str) -> str:
    """Return the prefix in lower case. Raises click.UsageError if it cannot be an id."""
    prefix = incident.lower()
    if not re.fullmatch(r"[0-9a-f-]{1,36}", prefix):
        raise click.UsageError(f"{incident!r} is not the id of an incident; `holdfast incidents` lists them")
    return prefix


async def full_id(connection: Connection, prefix: str) -> str:
    """Return the id that begins with `prefix`. Raises click.ClickException unless exactly one does."""
    keys = [row["key"] for row in await connection.fetch(_MATCHING, prefix)]
    if not keys:
        raise click.ClickException(f"no incident begins with {prefix}; `holdfast incidents` lists them")
    if len(keys) > 1:
        raise click.ClickException(f"{prefix} matches {', '.join(keys)}: give more of the id")
    key: str = keys[0]
    return key
