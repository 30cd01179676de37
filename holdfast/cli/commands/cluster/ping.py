"""`holdfast ping`."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from holdfast.bus import BusError
from holdfast.cli.connect.addresses import nats_option
from holdfast.cli.connect.addresses import nats_url as find_nats_url
from holdfast.cli.connect.bus import connected
from holdfast.cli.connect.directory import directory_option
from holdfast.cli.names import require_name
from holdfast.cli.values import FiniteNumber
from holdfast.subjects import ping_subject


@click.command()
@click.argument("process")
@directory_option
@nats_option
@click.option("--timeout-s", type=FiniteNumber(0.01, 3600), default=3.0, show_default=True)
def ping(process: str, directory: Path, nats_url: str | None, timeout_s: float) -> None:
    """Check whether PROCESS (controller, analyzer, standby, ckpt-coordinator, historian, or agent-NODE) is ready.

    \b
        holdfast ping controller

    Meant for container health checks: it finds the bus as a service in the same environment does.

    Exit codes: 0 ready, 1 not.
    """
    require_name(process, "process")
    asyncio.run(_ping(process, find_nats_url(directory, nats_url), timeout_s))


async def _ping(process: str, url: str, timeout_s: float) -> None:
    try:
        async with asyncio.timeout(timeout_s), connected(url, "ping") as bus:
            try:
                await bus.request(ping_subject(process), b"", timeout_s)
            except BusError as error:
                raise click.ClickException(f"{process} does not answer: {error}") from error
    except TimeoutError:
        raise click.ClickException(f"{process} does not answer: no reply within {timeout_s:g} s") from None
