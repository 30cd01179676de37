"""Asking a service over the bus, with patience while it starts, and a clear word when it does not answer."""

from __future__ import annotations

import asyncio
import getpass
import os

import click
import msgspec

from holdfast.bus import Bus, BusUnavailable, NoResponder
from holdfast.requests import Answer, Request

ANSWER_S = 5.0
PATIENCE_S = 60.0


def asked_by() -> str:
    """Who asks, for the record."""
    try:
        return f"{getpass.getuser()} (pid {os.getpid()})"
    except OSError:
        return f"uid {os.getuid()} (pid {os.getpid()})"


async def ask(bus: Bus, subject: str, request: Request, service: str) -> Answer:
    """Ask until there is an answer; a request asked again under its id is done once.

    Raises:
        click.ClickException: nobody answered within `PATIENCE_S`.
    """
    body = msgspec.json.encode(request)
    told = False
    try:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    return msgspec.json.decode(await bus.request(subject, body, ANSWER_S), type=Answer)
                except (NoResponder, BusUnavailable) as error:
                    if not told:
                        click.echo(
                            f"the {service} does not answer yet ({error}); trying for {PATIENCE_S:g} s", err=True
                        )
                        told = True
                    await asyncio.sleep(0.2)
    except TimeoutError:
        raise click.ClickException(
            f"the {service} did not answer within {PATIENCE_S:g} s; `holdfast status` shows whether it runs"
        ) from None
