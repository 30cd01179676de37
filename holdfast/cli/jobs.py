"""`holdfast jobs`."""

from __future__ import annotations

from pathlib import Path

import asyncpg
import click

from holdfast.cli.addresses import reader_url
from holdfast.cli.database import Connection, as_dicts, read
from holdfast.cli.options import reading_options
from holdfast.cli.tables import json_text, render

# The controller knows what a job is now, the historian what became of it until now.
_JOBS = """
select c.key as job, c.phase, c.generation, h.last_step, h.incidents, h.lost_steps, c.submitted_at, h.finished_at,
       c.exit_code, h.script
from (select key, phase, generation, submitted_at, exit_code
      from controller.jobs order by submitted_at desc limit $1) c
left join lateral (select * from historian.jobs h where h.job = c.key limit 1) h on true
order by c.submitted_at desc
"""


@click.command()
@reading_options
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="Newest jobs to show.")
def jobs(directory: Path, database_url: str | None, as_json: bool, limit: int) -> None:
    """List the jobs, newest first: phase, generation, last step, incidents, steps trained twice."""

    async def fetch(connection: Connection) -> list[asyncpg.Record]:
        return await connection.fetch(_JOBS, limit)

    rows = read(reader_url(directory, database_url), fetch)
    if as_json:
        click.echo(json_text(as_dicts(rows), indent=2))
    elif not rows:
        click.echo("no jobs yet: submit one with `holdfast run`")
    else:
        headers = [name.upper().replace("_", " ") for name in dict(rows[0])]
        click.echo(render(headers, [tuple(row) for row in rows]))
