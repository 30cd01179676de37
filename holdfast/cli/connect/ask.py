"""Requests to services over the bus, repeated while a service starts, with an error when it does not answer."""

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
    """Return the user and process id that a request is recorded with."""
    try:
        return f"{getpass.getuser()} (pid {os.getpid()})"
    except (OSError, KeyError):
        # A user id without a name, as in containers: OSError since Python 3.13, KeyError before.
        return f"uid {os.getuid()} (pid {os.getpid()})"


async def ask(bus: Bus, subject: str, request: Request, service: str) -> Answer:
    """Send a request until there is an answer; a service handles it once, however often it arrives. Raises
    click.ClickException without a readable answer within `PATIENCE_S`, BusError if the request cannot be sent.
    """
    body = msgspec.json.encode(request)
    is_reported = False
    try:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    return _readable(await bus.request(subject, body, ANSWER_S), service)
                except (NoResponder, BusUnavailable) as error:
                    if not is_reported:
                        click.echo(
                            f"the {service} does not answer yet ({error}); trying for {PATIENCE_S:g} s", err=True
                        )
                        is_reported = True
                    await asyncio.sleep(0.2)
    except TimeoutError:
        raise click.ClickException(
            f"the {service} did not answer within {PATIENCE_S:g} s; `holdfast status` shows whether it runs"
        ) from None


async def require(
    bus: Bus, request: Request, subject: str = CONTROLLER_REQUESTS, service: str = "controller"
) -> Answer:
    """Send a request; return its acceptance. Raises click.ClickException if refused or unanswered, else BusError."""
    answer = await ask(bus, subject, request, service)
    if not answer.accepted:
        raise click.ClickException(answer.message)
    return answer


def require_once(command: str, url: str, request: Request) -> None:
    """Send one request to the controller, over a connection opened for it. Raises as `require` does."""

    async def connect_and_ask() -> None:
        async with connected(url, command) as bus:
            await require(bus, request)

    asyncio.run(connect_and_ask())


def _readable(body: bytes, service: str) -> Answer:
    """Decode an answer and escape its message for a terminal: any client of the bus can answer."""
    try:
        answer = msgspec.json.decode(body, type=Answer)
    except UNREADABLE as error:
        raise click.ClickException(f"the {service} sent an unreadable answer: {error}") from error
    return msgspec.structs.replace(answer, message=printable(answer.message))
