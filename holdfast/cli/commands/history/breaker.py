"""`holdfast breaker`: the circuit breaker that blocks evictions when too many nodes of a job were blamed."""

from __future__ import annotations

from pathlib import Path

import click

from holdfast.cli.connect.addresses import nats_option, reader_url
from holdfast.cli.connect.addresses import nats_url as find_nats_url
from holdfast.cli.connect.ask import asked_by, require_once
from holdfast.cli.connect.connect_options import reading_options
from holdfast.cli.connect.database import read_rows
from holdfast.cli.connect.directory import directory_option
from holdfast.cli.names import require_name
from holdfast.cli.output.tables import print_rows
from holdfast.fresh_ids import uuid7
from holdfast.requests import ResetBreaker

_OPEN = """
select job, at as open_since, (body->>'evictions')::bigint as evictions, body->>'reason' as reason
from (
    select distinct on (e.job) e.job, e.type, e.at, e.body from historian.events e
    where e.type in ('breaker_opened', 'breaker_reset', 'job_finished') order by e.job, e.at desc
) newest
where type = 'breaker_opened' order by job
"""


@click.group(invoke_without_command=True)
@reading_options
@click.pass_context
def breaker(context: click.Context, directory: Path, database_url: str | None, as_json: bool) -> None:
    """Show the circuit breakers of jobs, or reset one.

    \b
        holdfast breaker
        holdfast breaker reset llama-7

    Evictions may take a share of a job's nodes within a time window (`[ladder] evictions_share_max, evictions_min,
    evictions_window_s`). More blame than that is probably wrong: the breaker opens, no more nodes of the job are
    evicted, and each eviction that it blocks is recorded (`withheld`). Lost nodes are still replaced.
    """
    if context.invoked_subcommand is None:
        context.invoke(show, directory=directory, database_url=database_url, as_json=as_json)


@breaker.command()
@reading_options
def show(directory: Path, database_url: str | None, as_json: bool) -> None:
    """List the jobs whose breaker is open."""
    rows = read_rows(reader_url(directory, database_url), _OPEN)
    columns = {"JOB": "job", "OPEN SINCE": "open_since", "EVICTIONS": "evictions", "REASON": "reason"}
    print_rows(rows, columns, as_json=as_json, empty="all breakers are closed")


@breaker.command()
@click.argument("job")
@directory_option
@nats_option
def reset(job: str, directory: Path, nats_url: str | None) -> None:
    """Close the breaker of JOB, so that its nodes can be evicted again. Find the cause of the evictions first."""
    require_name(job, "job name")
    require_once("breaker", find_nats_url(directory, nats_url), ResetBreaker(id=uuid7(), asked_by=asked_by(), job=job))
    click.echo(f"the circuit breaker of job {job} is closed again")
