"""`holdfast attach`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import click
import msgspec

from holdfast.cli.connect.addresses import both_urls
from holdfast.cli.connect.connect_options import cluster_options
from holdfast.cli.connect.database import Connection, read
from holdfast.cli.follow import training_job
from holdfast.cli.follow.training_job import JobStatus
from holdfast.cli.names import require_name
from holdfast.cli.output.tables import printable
from holdfast.cli.output.unknown_job import unknown_job

_STATUS = """
select c.key as job, c.phase, c.generation, c.exit_code,
       coalesce(f.body->>'reason', 'the reason is not recorded yet') as reason,
       (select count(*) from standby.nodes where job = c.key) as nodes,
       (select body->'nodes'->>0 from historian.events where type = 'generation_started' and job = c.key
        order by at desc limit 1) as first_node
from controller.jobs c
left join lateral (
    select e.body from historian.events e where e.type = 'job_finished' and e.job = c.key order by e.at desc limit 1
) f on true
where c.key = $1
"""


@click.command()
@click.argument("job")
@cluster_options
def attach(job: str, directory: Path, nats_url: str | None, database_url: str | None) -> None:
    """Follow JOB from now on: its output, the decisions about it, and a status line.

    \b
        holdfast attach llama-7

    Ctrl-C and closing the terminal leave the job running; `holdfast stop` stops it. Earlier output is in the logs:
    `holdfast logs JOB`. If the job has ended already, the reason is shown.

    Exit codes: the job's; 130 after Ctrl-C; 141 if the output is no longer read; 1 if there is no such job.
    """
    require_name(job, "job name")
    bus, database = both_urls(directory, nats_url, database_url)

    async def fetch(connection: Connection) -> JobStatus:
        row = await connection.fetchrow(_STATUS, job)
        if row is None:
            raise await unknown_job(connection, job)
        return msgspec.convert(dict(row), JobStatus)

    status = read(database, fetch)
    if status.exit_code is not None:
        click.echo(f"[holdfast] job {job} has ended, {printable(f'{status.phase}: {status.reason}')}", err=True)
        sys.exit(status.exit_code)
    sys.exit(asyncio.run(training_job.attach(status, bus, database)))
