"""`holdfast nodes`: the inventory. Its subcommands change it, by asking the standby service."""

from __future__ import annotations

from pathlib import Path

import asyncpg
import click

from holdfast.cli.addresses import reader_url
from holdfast.cli.database import Connection, as_dicts, read
from holdfast.cli.options import reading_options
from holdfast.cli.tables import json_text, render

_NODES = """
select key as node, state, job, epoch, blocked_until, reason, updated_at from standby.nodes order by key
"""


@click.group(invoke_without_command=True)
@reading_options
@click.pass_context
def nodes(context: click.Context, directory: Path, database_url: str | None, as_json: bool) -> None:
    """List the nodes: state, the job each is handed to, and for how long and why one is blocked."""
    if context.invoked_subcommand is not None:
        return

    async def fetch(connection: Connection) -> list[asyncpg.Record]:
        return await connection.fetch(_NODES)

    rows = read(reader_url(directory, database_url), fetch)
    if as_json:
        click.echo(json_text(as_dicts(rows), indent=2))
    elif not rows:
        click.echo("no nodes yet: each registers when its agent starts")
    else:
        click.echo(
            render(
                ["NODE", "STATE", "JOB", "EPOCH", "BLOCKED UNTIL", "REASON"],
                [
                    (row["node"], row["state"], row["job"], row["epoch"], row["blocked_until"], row["reason"])
                    for row in rows
                ],
            )
        )
