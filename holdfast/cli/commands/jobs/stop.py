"""`holdfast stop`."""

from __future__ import annotations

from pathlib import Path

import click

from holdfast.cli.connect.addresses import nats_option
from holdfast.cli.connect.addresses import nats_url as find_nats_url
from holdfast.cli.connect.ask import asked_by, require_once
from holdfast.cli.connect.directory import directory_option
from holdfast.cli.names import require_name
from holdfast.fresh_ids import uuid7
from holdfast.requests import StopJob


@click.command()
@click.argument("job")
@directory_option
@nats_option
def stop(job: str, directory: Path, nats_url: str | None) -> None:
    """Stop JOB for good: SIGTERM to its ranks, SIGKILL after a grace period; its nodes return to the pool.

    \b
        holdfast stop llama-7
    """
    require_name(job, "job name")
    require_once("stop", find_nats_url(directory, nats_url), StopJob(id=uuid7(), asked_by=asked_by(), job=job))
    click.echo(f"stopping job {job}; `holdfast jobs` shows when it has ended")
