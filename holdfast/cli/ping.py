"""`holdfast ping`."""

from __future__ import annotations

import asyncio
import os

import click

from holdfast import config
from holdfast.bus import BusError
from holdfast.bus.nats import connect
from holdfast.subjects import ping_subject


@click.command()
@click.argument("process")
@click.option("--nats-url", help="Address of NATS (default: as the services find it).")
@click.option("--timeout-s", default=3.0, show_default=True)
def ping(process: str, nats_url: str | None, timeout_s: float) -> None:
    """Ask PROCESS (controller, analyzer, standby, ckpt-coordinator, historian, or agent-NODE) whether it is ready.

    Exit code 0 if it is. Meant for container health checks, so it reads the address as the services do.
    """
    try:
        settings, _ = config.load(os.environ, {"nats_url": nats_url})
        asyncio.run(_ping(process, settings.nats_url, timeout_s))
    except (BusError, TimeoutError, config.ConfigRefused) as error:
        raise click.ClickException(f"{process} does not answer: {error or 'no answer in time'}") from error


async def _ping(process: str, url: str, timeout_s: float) -> None:
    async with asyncio.timeout(timeout_s):
        bus = await connect(url, "holdfast ping")
        try:
            await bus.request(ping_subject(process), b"", timeout_s)
        finally:
            await bus.close()
