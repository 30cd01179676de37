"""Asking the analyzer for a finding about a job, and waiting until it is recorded."""

from __future__ import annotations

import asyncio
from typing import TypeVar

import click
import msgspec

from holdfast.cli.connect.ask import ask
from holdfast.cli.connect.bus import connected
from holdfast.cli.connect.database import DatabaseUnreachable, reading, working
from holdfast.decoding import UNREADABLE
from holdfast.events import Event
from holdfast.requests import ANALYZER_REQUESTS, Request

LOOK_EVERY_S = 0.1
PATIENCE_S = 3.0
"""After this it is said that there is something to wait for."""

# Partitions are by the time of events: the clock that they have may differ by less than this.
_FINDING = "select body from historian.events where id = $1::uuid and at > now() - interval '1 day'"

F = TypeVar("F", bound=Event)


class Untold(click.ClickException):
    """There is no finding, and why; 1 is the exit code of one that names somebody."""

    exit_code = 2


def found(
    request: Request, kind: type[F], finding: str, *, command: str, bus_url: str, database_url: str, within_s: float
) -> F:
    """The event `finding` that follows from `request`, once the historian has it.

    Raises:
        Untold: it is refused, there is none within `within_s` seconds, or somebody who is needed for it does not
            answer.
    """
    try:
        return asyncio.run(_found(request, kind, finding, command, bus_url, database_url, within_s))
    except click.ClickException as error:
        raise Untold(error.message) from error


async def _found(
    request: Request, kind: type[F], finding: str, command: str, bus_url: str, database_url: str, within_s: float
) -> F:
    # What nobody could read afterwards is not asked for: it may hold training up.
    async with reading(database_url) as connection, working(database_url):
        await connection.fetchrow(_FINDING, finding)
    async with connected(bus_url, command) as bus:
        answer = await ask(bus, ANALYZER_REQUESTS, request, "analyzer")
    if not answer.accepted:
        raise click.ClickException(answer.message)
    patience = asyncio.get_running_loop().call_later(PATIENCE_S, _say_that_it_takes_long, within_s)
    try:
        async with asyncio.timeout(within_s):
            return await _recorded(kind, finding, database_url)
    except TimeoutError:
        raise click.ClickException(
            f"no finding within {within_s:g} s: the job may have ended, or moved to another generation; "
            "`holdfast status` shows the job, the analyzer and the historian"
        ) from None
    finally:
        patience.cancel()


async def _recorded(kind: type[F], finding: str, database_url: str) -> F:
    while True:
        try:
            async with reading(database_url) as connection, working(database_url):
                while (row := await connection.fetchrow(_FINDING, finding)) is None:  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(LOOK_EVERY_S)
        except DatabaseUnreachable:
            # It was there before: the finding is said and recorded whether or not it is away for a while.
            await asyncio.sleep(LOOK_EVERY_S)
            continue
        try:
            return msgspec.convert(row["body"], kind)
        except UNREADABLE as error:
            raise click.ClickException(f"the finding is of another version of Holdfast: {error}") from error


def _say_that_it_takes_long(within_s: float) -> None:
    click.echo(f"asked; the nodes' answers take up to {within_s:g} s", err=True)
