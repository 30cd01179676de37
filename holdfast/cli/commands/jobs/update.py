"""`holdfast update`: another version of a running job's code."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click

from holdfast.cli.code_upload import snapshot_of, upload
from holdfast.cli.connect.addresses import nats_option
from holdfast.cli.connect.addresses import nats_url as find_nats_url
from holdfast.cli.connect.ask import asked_by, require
from holdfast.cli.connect.bus import connected
from holdfast.cli.connect.directory import directory_option
from holdfast.cli.connect.options import json_option
from holdfast.cli.names import require_name
from holdfast.cli.output.duration import Duration
from holdfast.cli.output.tables import json_text
from holdfast.code.manifest import short
from holdfast.code.snapshot import Snapshot
from holdfast.fresh_ids import uuid7
from holdfast.requests import WITHIN_S_MAX, UpdateJob


@click.command()
@click.argument("job")
@click.option(
    "--from",
    "source",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    required=True,
    help="The root of the new source tree: the same tree as the job's, or another copy of it.",
)
@click.option("--urgent", "is_urgent", is_flag=True, help="Restart the ranks in place at once.")
@click.option("--lazy", "is_lazy", is_flag=True, help="Wait for the next failure, or for --within (the default).")
@click.option(
    "--within",
    "within_s",
    metavar="TIME",
    default="24h",
    show_default=True,
    type=Duration(at_most_s=WITHIN_S_MAX),
    help="With --lazy: restart for it after this time if no failure has come: 90s, 30m, 24h, 7d.",
)
@click.option("--message", "-m", default="", help="What it is for; kept with the version.")
@directory_option
@nats_option
@json_option
def update(
    job: str,
    source: Path,
    is_urgent: bool,
    is_lazy: bool,
    within_s: float,
    message: str,
    directory: Path,
    nats_url: str | None,
    as_json: bool,
) -> None:
    """Bring new code into JOB while it runs: machines, environment and checkpoints stay.

    The code becomes a version of the job's, which is kept (`holdfast versions JOB`). --urgent restarts the ranks at
    once. Otherwise it waits: failures come anyway, and the restart after one brings it in for nothing. Until it has
    proved itself, an error that it raises rolls the job back to the last good version.

    \b
        holdfast update llama-7 --from . --urgent -m "fix the evaluation"
        holdfast update llama-7 --from ~/src/llama --within 6h
        holdfast rollback llama-7
    """
    require_name(job, "job name")
    if is_urgent and is_lazy:
        raise click.UsageError("choose --urgent or --lazy")
    found = snapshot_of(source, directory)
    asked_at = datetime.now(UTC)
    asyncio.run(_update(job, found, is_urgent, within_s, message, find_nats_url(directory, nats_url)))
    until = None if is_urgent else asked_at + timedelta(seconds=within_s)
    if as_json:
        click.echo(json_text({"job": job, "version": found.version, "urgent": is_urgent, "until": until}, indent=2))
    elif is_urgent:
        click.echo(f"job {job} restarts with code version {short(found.version)}; `holdfast versions {job}` shows it")
    else:
        click.echo(
            f"code version {short(found.version)} waits for the next restart of job {job}, until "
            f"{until:%Y-%m-%d %H:%M:%S} UTC at the latest"
        )


async def _update(job: str, found: Snapshot, is_urgent: bool, within_s: float, message: str, url: str) -> None:
    async with connected(url, "update") as bus:
        offer = await upload(bus, found, message)
        request = UpdateJob(
            id=uuid7(), asked_by=asked_by(), job=job, code=offer, is_urgent=is_urgent, within_s=within_s
        )
        await require(bus, request)
