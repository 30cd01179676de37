"""The follower of a job, shared by every command that waits for something to happen to one."""

from __future__ import annotations

import asyncio
import signal
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

import asyncpg
import click

from holdfast import events
from holdfast.bus import Bus, BusError
from holdfast.cli.code_upload import upload
from holdfast.cli.connect.ask import ask, asked_by, require
from holdfast.cli.connect.database import DatabaseUnreachable, reading, working
from holdfast.code.snapshot import Snapshot
from holdfast.daemon.jobs.job_nodes import KnownNodes, Membership
from holdfast.events import AnyEvent
from holdfast.events.parts.job import JobSpec
from holdfast.exit_codes import INTERRUPTED
from holdfast.fresh_ids import uuid7
from holdfast.requests import CONTROLLER_REQUESTS, Answer, StopJob, SubmitJob
from holdfast.subjects import ROOT, event_subject

R = TypeVar("R")


class JobFollower(ABC, Generic[R]):
    """A job that a command follows over the bus until it has a result. The bus may lose an event: a subclass also waits
    for its result in the database (`recorded`) or for a time limit.
    """

    def __init__(self, job: str, bus: Bus) -> None:
        self.job = job
        self.bus = bus
        self._known_nodes = KnownNodes()
        self.result: asyncio.Future[R] = asyncio.get_running_loop().create_future()

    @abstractmethod
    def take(self, event: AnyEvent) -> None:
        """Handle an event of the job."""

    async def prepare(self, event: AnyEvent) -> None:
        """Read what `take` needs to show of the event; later events wait for it."""

    async def interrupt(self) -> None:
        """Handle SIGINT and SIGTERM. By default they end the command."""
        self._fail(click.exceptions.Exit(INTERRUPTED))

    def output_closed(self) -> None:
        """Handle the end of the process that read the output (`| head`)."""
        self._fail(BrokenPipeError())

    def finish(self, result: R) -> None:
        """End with `result`, unless there is one already."""
        if not self.result.done():
            self.result.set_result(result)

    async def follow(self, *work: Callable[[], Awaitable[None]]) -> R:
        """Pass events to `take` and run `work`, in this order, until there is a result.

        Raises ClickException and BusError of `work` as they are; any other error is a defect, and comes in a group.
        """
        loop = asyncio.get_running_loop()
        tasks: list[asyncio.Task[None]] = []
        async with asyncio.TaskGroup() as group:

            def interrupt() -> None:
                if not self.result.done():
                    tasks.append(group.create_task(self._guarded(self.interrupt)))

            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, interrupt)
            for part in (self._take_events, *work):
                tasks.append(group.create_task(self._guarded(part)))
                # It runs to its first wait, and `listen` has subscribed by then: no event that follows from a request
                # of the next part is missed.
                await asyncio.sleep(0)
            await asyncio.wait([self.result])
            for task in tasks:
                task.cancel()
        return self.result.result()

    async def submit(self, spec: JobSpec, code: Snapshot | None = None) -> None:
        """Submit the job. Raises click.ClickException if it is refused, or nothing answers."""
        await submit(self.bus, spec, code)

    async def stop(self) -> Answer:
        """Ask the controller to stop the job. Raises click.ClickException if nothing answers."""
        request = StopJob(id=uuid7(), asked_by=asked_by(), job=self.job)
        return await ask(self.bus, CONTROLLER_REQUESTS, request, "controller")

    async def recorded(self, database_url: str, every_s: float, query: str, *arguments: Any) -> asyncpg.Record:
        """Wait for a row of `query`; retry while the database is down. Raises ClickException if it lacks our tables."""
        while True:
            await asyncio.sleep(every_s)
            try:
                async with reading(database_url) as connection, working(database_url):
                    row = await connection.fetchrow(query, *arguments)
            except (DatabaseUnreachable, asyncpg.InternalClientError):
                continue
            if row is not None:
                return row

    async def _take_events(self) -> None:
        async for subject, body in self.bus.listen(f"{ROOT}.*.*.{self.job}.>"):
            try:
                event = events.decode(body)
            except events.UnreadableEvent:
                continue
            # Every service rejects an event on another subject than its own, so it has no effect.
            if event_subject(event) == subject and self.is_of_own_node(event):
                await self.prepare(event)
                self.take(event)

    def is_of_own_node(self, event: AnyEvent) -> bool:
        """Return False for what a node publishes about a job that it does not belong to. Before the first generation
        that begins meanwhile, the nodes are not known.
        """
        self._known_nodes.adopt(self._known_nodes.learned(event))
        return not self._known_nodes.knows(event.job) or self._known_nodes.membership(event) is Membership.MEMBER

    async def _guarded(self, work: Callable[[], Awaitable[None]]) -> None:
        """Turn an error from outside of this process into the result, so that the command ends with one message."""
        try:
            await work()
        except (click.ClickException, BusError) as error:
            self._fail(error)
        except BrokenPipeError:
            self.output_closed()

    def _fail(self, error: Exception) -> None:
        if not self.result.done():
            self.result.set_exception(error)


async def submit(bus: Bus, spec: JobSpec, code: Snapshot | None = None) -> None:
    """Submit a job, with the version of its code. Raises click.ClickException if it is refused, or nothing answers."""
    offer = await upload(bus, code) if code else None
    await require(bus, SubmitJob(id=uuid7(), asked_by=asked_by(), spec=spec, code=offer))
