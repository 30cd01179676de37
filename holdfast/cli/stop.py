"""`holdfast stop`."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from holdfast.cli.addresses import nats_option
from holdfast.cli.addresses import nats_url as find_nats_url
from holdfast.cli.ask import ask, asked_by
from holdfast.cli.bus import connected
from holdfast.cli.directory import directory_option
from holdfast.cli.names import checked_or_complain
from holdfast.ids import uuid7
from holdfast.requests import CONTROLLER_REQUESTS, StopJob


@click.command()
@click.argument("job")
@directory_option
@nats_option
def stop(job: str, directory: Path, nats_url: str | None) -> None:
    """Stop JOB for good: its ranks get SIGTERM, then SIGKILL after a short grace; its nodes go back to the pool."""
    checked_or_complain(job, "job name")
    asyncio.run(_stop(job, find_nats_url(directory, nats_url)))


async def _stop(job: str, url: str) -> None:
    request = StopJob(id=uuid7(), asked_by=asked_by(), job=job)
    async with connected(url, "stop") as bus:
        answer = await ask(bus, CONTROLLER_REQUESTS, request, "controller")
    if not answer.accepted:
        raise click.ClickException(answer.message)
    click.echo(f"job {job} is being stopped; `holdfast jobs` shows when it is over")
