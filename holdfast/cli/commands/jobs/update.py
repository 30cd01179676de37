"""`holdfast update`: a new version of a running job's code."""

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
from holdfast.cli.connect.connect_options import json_option
from holdfast.cli.connect.directory import directory_option
from holdfast.cli.names import require_name
from holdfast.cli.output.duration import Duration
from holdfast.cli.output.tables import json_text
from holdfast.cli.values import FilePath
from holdfast.code.manifest import short
from holdfast.code.snapshot import Snapshot
from holdfast.fresh_ids import uuid7
from holdfast.requests import WITHIN_S_MAX, UpdateJob


@click.command()
@click.argument("job")
@click.option(
    "--from",
    "source",
    type=FilePath(exists=True, file_okay=False, path_type=Path),
    required=True,
    help="Root of the new source tree: the job's own tree, or another copy of it.",
)
@click.option("--urgent", "is_urgent", is_flag=True, help="Restart the ranks in place now.")
@click.option(
    "--lazy", "is_lazy", is_flag=True, help="Wait for the next failure, at most for --within. This is the default."
)
@click.option(
    "--within",
    "within_s",
    metavar="TIME",
    default="24h",
    show_default=True,
    type=Duration(at_most_s=WITHIN_S_MAX),
    help="With --lazy: restart after this time if there was no failure: 90s, 30m, 24h, 7d.",
)
@click.option("--message", "-m", default="", help="Purpose of the update; kept with the version.")
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
    """Update the code of JOB while it runs: machines, environment and checkpoints stay.

    \b
        holdfast update llama-7 --from . --urgent -m "fix the evaluation"
        holdfast update llama-7 --from ~/src/llama --within 6h

    The code is kept as a new version of the job's code (`holdfast versions JOB`). --urgent restarts the ranks now.
    Otherwise the update waits for the next failure, whose restart loads it at no extra cost. If the new code raises an
    error before it has proved itself, the job is rolled back to the last good version (`holdfast rollback` does so by
    hand).

    Exit codes: 0 if the update was accepted, 1 if it was refused, 2 for wrong options.
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
