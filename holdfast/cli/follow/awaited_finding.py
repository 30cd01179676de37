"""A finding about a job that the analyzer is asked for, awaited on the bus and in the database."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

import click
import msgspec

from holdfast.bus import Bus
from holdfast.cli.connect.ask import require
from holdfast.cli.connect.bus import connected
from holdfast.cli.connect.database import reading, working
from holdfast.cli.follow.follower import JobFollower
from holdfast.decoding import UNREADABLE
from holdfast.events import AnyEvent, Event
from holdfast.requests import ANALYZER_REQUESTS, LocateSlowness, TraceJob

READ_EVERY_S = 1.0
"""Interval of reads of the finding from the database, in case the bus lost it."""

PATIENCE_S = 3.0
"""Time after which a line shows what the command waits for."""

# Partitions are by the time of the event: the clocks of the database and of the analyzer differ by less than a day.
_FINDING = "select body from historian.events where id = $1::uuid and at > now() - interval '1 day'"

F = TypeVar("F", bound=Event)


class NoFinding(click.ClickException):
    """There is no finding; the message gives the reason. Exit code 1 would be a finding with suspects."""

    exit_code = 2


def find(
    request: TraceJob | LocateSlowness,
    kind: type[F],
    finding: str,
    *,
    command: str,
    bus_url: str,
    database_url: str,
    within_s: float,
) -> F:
    """Send `request` to the analyzer and return the event that answers it, whose id is `finding`. Raises NoFinding if
    it is refused, a service that is needed does not answer, or nothing is found within `within_s` seconds.
    """

    async def ask_and_wait() -> F:
        # Without the database, a finding that the bus loses would be lost: training is not held up for that.
        async with reading(database_url) as connection, working(database_url):
            await connection.fetchrow(_FINDING, finding)
        async with connected(bus_url, command) as bus:
            return await _FindingFollower(bus, request, kind, finding, database_url, within_s).run()

    try:
        return asyncio.run(ask_and_wait())
    except click.ClickException as error:
        raise NoFinding(error.message) from error


class _FindingFollower(JobFollower[F], Generic[F]):
    """A job followed until the finding about it is published or recorded."""

    def __init__(
        self,
        bus: Bus,
        request: TraceJob | LocateSlowness,
        kind: type[F],
        finding: str,
        database_url: str,
        within_s: float,
    ) -> None:
        super().__init__(request.job, bus)
        self._request = request
        self._kind = kind
        self._finding = finding
        self._database_url = database_url
        self._within_s = within_s

    async def run(self) -> F:
        return await self.follow(self._ask_and_wait)

    def take(self, event: AnyEvent) -> None:
        if isinstance(event, self._kind) and event.id == self._finding:
            self.finish(event)

    async def _ask_and_wait(self) -> None:
        await require(self.bus, self._request, ANALYZER_REQUESTS, "analyzer")
        patience = asyncio.get_running_loop().call_later(PATIENCE_S, self._explain_waiting)
        try:
            async with asyncio.timeout(self._within_s):
                row = await self.recorded(self._database_url, READ_EVERY_S, _FINDING, self._finding)
            self.finish(msgspec.convert(row["body"], self._kind))
        except UNREADABLE as error:
            raise click.ClickException(f"the finding is of another version of Holdfast: {error}") from error
        except TimeoutError:
            raise click.ClickException(
                f"no finding within {self._within_s:g} s: the job may have ended, or started another generation; "
                "`holdfast status` shows the job, the analyzer and the historian"
            ) from None
        finally:
            patience.cancel()

    def _explain_waiting(self) -> None:
        click.echo(f"waiting for the nodes' answers, up to {self._within_s:g} s", err=True)
