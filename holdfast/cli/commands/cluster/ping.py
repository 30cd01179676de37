"""`holdfast ping`."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import click

from holdfast.bus import Bus, BusError
from holdfast.cli.connect.addresses import nats_option
from holdfast.cli.connect.addresses import nats_url as find_nats_url
from holdfast.cli.connect.bus import connected, require_addresses
from holdfast.cli.connect.directory import directory_option
from holdfast.cli.names import require_name
from holdfast.cli.values import FiniteNumber
from holdfast.subjects import ping_subject

ANSWER_S = 3.0
"""Seconds that an answer may take, if something is there to give one."""
ASK_AGAIN_S = 0.2
CONNECT_AGAIN_S = 1.0


@click.command()
@click.argument("process")
@directory_option
@nats_option
@click.option("--timeout-s", type=FiniteNumber(0.01, 3600), default=3.0, show_default=True)
@click.option("--wait", "waits", is_flag=True, help="Ask again until it is ready, or the time is over.")
def ping(process: str, directory: Path, nats_url: str | None, timeout_s: float, waits: bool) -> None:
    """Check whether PROCESS (controller, analyzer, standby, ckpt-coordinator, historian, or agent-NODE) is ready.

    \b
        holdfast ping controller
        holdfast ping agent-node-0 --wait --timeout-s 60

    Meant for container health checks: it finds the bus as a service in the same environment does.

    Exit codes: 0 ready, 1 not.
    """
    require_name(process, "process")
    url = find_nats_url(directory, nats_url)
    asyncio.run(_wait(process, url, timeout_s) if waits else _ping(process, url, timeout_s))


async def _ping(process: str, url: str, timeout_s: float) -> None:
    try:
        async with asyncio.timeout(timeout_s), connected(url, "ping") as bus:
            try:
                await bus.request(ping_subject(process), b"", timeout_s)
            except BusError as error:
                raise click.ClickException(f"{process} does not answer: {error}") from error
    except TimeoutError:
        raise click.ClickException(f"{process} does not answer: no reply within {timeout_s:g} s") from None


async def _wait(process: str, url: str, timeout_s: float) -> None:
    require_addresses(url)
    why = ""
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                try:
                    async with connected(url, "ping") as bus:
                        await _answer(bus, process)
                        return
                except click.ClickException as error:
                    why = f"; {error.message}"
                await asyncio.sleep(CONNECT_AGAIN_S)
    except TimeoutError:
        raise click.ClickException(f"{process} does not answer within {timeout_s:g} s{why}") from None


async def _answer(bus: Bus, process: str) -> None:
    """Wait for its answer, however long it takes."""
    while True:
        with suppress(BusError):
            await bus.request(ping_subject(process), b"", ANSWER_S)
            return
        await asyncio.sleep(ASK_AGAIN_S)
