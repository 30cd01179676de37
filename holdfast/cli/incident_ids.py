"""An incident by the beginning of its id, as people name it."""

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
    """What was typed, if it can be an id.

    Raises:
        click.UsageError: it cannot.
    """
    prefix = incident.lower()
    if not re.fullmatch(r"[0-9a-f-]{1,36}", prefix):
        raise click.UsageError(f"{incident!r} is no id of an incident; `holdfast incidents` lists them")
    return prefix


async def full_id(connection: Connection, prefix: str) -> str:
    """The id that begins so.

    Raises:
        click.ClickException: none does, or several do.
    """
    keys = [row["key"] for row in await connection.fetch(_MATCHING, prefix)]
    if not keys:
        raise click.ClickException(f"no incident begins with {prefix}; `holdfast incidents` lists them")
    if len(keys) > 1:
        raise click.ClickException(f"{prefix} could be any of {', '.join(keys)}: give more of the id")
    key: str = keys[0]
    return key
