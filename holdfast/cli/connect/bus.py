"""The connection of commands to the bus: a short wait, and errors with their cure."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import click

from holdfast.bus import Bus, BusError
from holdfast.bus.link import address_of
from holdfast.bus.nats import connect
from holdfast.cli.connect.addresses import as_of_now
from holdfast.cli.connect.command_tls import network_policy

CONNECT_S = 5.0


@asynccontextmanager
async def connected(url: str, command: str) -> AsyncIterator[Bus]:
    """Connect for the duration of the block. Raises ClickException if `url` is not an address, no server answers within
    `CONNECT_S`, it refuses the connection, or a request of the block fails.
    """
    require_addresses(url)
    try:
        bus = await connect(
            lambda: as_of_now(url),
            f"holdfast {command}",
            network=network_policy(),
            makes_streams=False,
            timeout_s=CONNECT_S,
        )
    except BusError as error:
        raise click.ClickException(f"{error} (`holdfast status` shows the cluster of a directory)") from error
    try:
        yield bus
    except BusError as error:
        raise click.ClickException(str(error)) from error
    finally:
        await bus.close()


def require_addresses(url: str) -> None:
    """Raise ClickException unless each of the addresses, which commas separate, is one of NATS."""
    for part in url.split(","):
        if not _is_address(part):
            raise click.ClickException(f"{address_of(part)!r} is not an address of NATS: use nats://HOST:PORT")


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url if "://" in url else f"nats://{url}")
        return (
            parts.scheme in ("nats", "tls", "ws", "wss") and bool(parts.hostname) and parts.port != 0 and " " not in url
        )
    except ValueError:
        return False
