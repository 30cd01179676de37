"""`holdfast rollback`."""

from __future__ import annotations

import re
from pathlib import Path

import click

from holdfast.cli.connect.addresses import nats_option
from holdfast.cli.connect.addresses import nats_url as find_nats_url
from holdfast.cli.connect.ask import asked_by, require_once
from holdfast.cli.connect.directory import directory_option
from holdfast.cli.names import require_name
from holdfast.cli.values import NonEmptyText
from holdfast.fresh_ids import uuid7
from holdfast.requests import RollbackJob

_VERSION = re.compile("[0-9a-f]{1,64}")


@click.command()
@click.argument("job")
@click.option(
    "--to",
    type=NonEmptyText(),
    metavar="VERSION",
    help="Number or beginning of the name of a version, as `holdfast versions` lists it.",
)
@directory_option
@nats_option
def rollback(job: str, to: str | None, directory: Path, nats_url: str | None) -> None:
    """Restart JOB now with an earlier version of its code: the last good one, or --to VERSION.

    \b
        holdfast rollback llama-7
        holdfast rollback llama-7 --to 2

    Without --to the present version is marked bad, and no later rollback chooses it. If an update is waiting, it is
    withdrawn instead, and the present version stays.
    """
    require_name(job, "job name")
    if to is not None and not _VERSION.fullmatch(to):
        raise click.BadParameter(f"{to!r} is not a version: give a number, or digits of its name", param_hint="--to")
    url = find_nats_url(directory, nats_url)
    require_once("rollback", url, RollbackJob(id=uuid7(), asked_by=asked_by(), job=job, to=to or ""))
    click.echo(f"done; `holdfast versions {job}` shows the version that job {job} runs")
