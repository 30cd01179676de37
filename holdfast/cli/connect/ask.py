"""Asking a service over the bus, with patience while it starts, and a clear word when it does not answer."""

from __future__ import annotations

import asyncio
import getpass
import os

import click
import msgspec

from holdfast.bus import Bus, BusUnavailable, NoResponder
from holdfast.cli.connect.bus import connected
from holdfast.cli.output.tables import printable
from holdfast.decoding import UNREADABLE
from holdfast.requests import CONTROLLER_REQUESTS, Answer, Request

ANSWER_S = 5.0
PATIENCE_S = 60.0


def asked_by() -> str:
    """Who asks, for the record."""
    try:
        return f"{getpass.getuser()} (pid {os.getpid()})"
    except (OSError, KeyError):
        # Python 3.13 says OSError where older ones say KeyError: a user id without a name, as in containers.
        return f"uid {os.getuid()} (pid {os.getpid()})"


async def ask(bus: Bus, subject: str, request: Request, service: str) -> Answer:
    """Ask until there is an answer; a request asked again under its id is done once.

    Raises:
        click.ClickException: nobody answered within `PATIENCE_S`, or not in our language.
        BusError: the request cannot be sent.
    """
    body = msgspec.json.encode(request)
    told = False
    try:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    return _readable(await bus.request(subject, body, ANSWER_S), service)
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


async def have_done(bus: Bus, request: Request) -> None:
    """Have the controller do something.

    Raises:
        click.ClickException: it does not answer, or refuses, and says why.
    """
    answer = await ask(bus, CONTROLLER_REQUESTS, request, "controller")
    if not answer.accepted:
        raise click.ClickException(answer.message)


def order(command: str, url: str, request: Request) -> None:
    """`have_done`, over a connection of its own for `command`."""

    async def connect_and_ask() -> None:
        async with connected(url, command) as bus:
            await have_done(bus, request)

    asyncio.run(connect_and_ask())


def _readable(body: bytes, service: str) -> Answer:
    """An answer whose message may go to a terminal: anybody on the bus can answer."""
    try:
        answer = msgspec.json.decode(body, type=Answer)
    except UNREADABLE as error:
        raise click.ClickException(f"the {service} answers something that is no answer: {error}") from error
    return msgspec.structs.replace(answer, message=printable(answer.message))
