"""Following one job to its end, from its submission or from now on: output, decisions, a status line, the exit code."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable

import asyncpg
import click
import msgspec

from holdfast import events
from holdfast.bus import Bus, BusError
from holdfast.cli.code_upload import bring
from holdfast.cli.connect.ask import ask, asked_by
from holdfast.cli.connect.bus import connected
from holdfast.cli.follow.status_line import StatusLine
from holdfast.cli.output.tables import coloured
from holdfast.code.snapshot import Snapshot
from holdfast.decoding import UNREADABLE
from holdfast.events import AnyEvent, JobFinished
from holdfast.events.parts.job import JobSpec
from holdfast.exit_codes import INTERRUPTED
from holdfast.fresh_ids import uuid7
from holdfast.requests import CONTROLLER_REQUESTS, StopJob, SubmitJob
from holdfast.subjects import ROOT, event_subject, log_subject

LOOK_EVERY_S = 2.0
"""How often the truth is asked whether the job is over, should the bus have lost the word."""

UNREAD = 141
"""Exit code of who writes where nobody reads any more, as shells have it."""


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """Where a job stands; `exit_code` is None while it is not over."""

    job: str
    phase: str
    generation: int
    nodes: int
    exit_code: int | None
    reason: str


class RefusedError(click.ClickException):
    """The controller did not accept the job."""


async def follow(spec: JobSpec, nats_url: str, database_url: str, *, detach: bool, code: Snapshot | None = None) -> int:
    """Submit `spec`, with the version of its code, and stay with it; returns the exit code.

    Raises:
        click.ClickException: refused, or nobody answers.
    """
    async with connected(nats_url, "run") as bus:
        if detach:
            await _submit(bus, spec, code)
            click.echo(spec.name)
            click.echo(f"`holdfast attach {spec.name}` follows it", err=True)
            return 0
        return await _Follower(spec.name, bus, database_url, spec, code).run()


async def attach(standing: Standing, nats_url: str, database_url: str) -> int:
    """Stay with a job that was submitted before; returns its exit code.

    Raises:
        click.ClickException: nobody answers.
    """
    async with connected(nats_url, "attach") as bus:
        follower = _Follower(standing.job, bus, database_url)
        follower.line.stands(standing.phase, standing.generation, standing.nodes)
        return await follower.run()


async def _submit(bus: Bus, spec: JobSpec, code: Snapshot | None) -> None:
    offer = await bring(bus, code) if code else None
    request = SubmitJob(id=uuid7(), asked_by=asked_by(), spec=spec, code=offer)
    answer = await ask(bus, CONTROLLER_REQUESTS, request, "controller")
    if not answer.accepted:
        raise RefusedError(answer.message)


class _Follower:
    """Who brings the job (`submits`) also stops it by Ctrl-C; who came later only leaves."""

    def __init__(
        self, job: str, bus: Bus, database_url: str, submits: JobSpec | None = None, code: Snapshot | None = None
    ) -> None:
        self._job = job
        self._submits = submits
        self._code = code
        self._bus = bus
        self._database_url = database_url
        self.line = StatusLine(job, sys.stderr)
        self._accepted = asyncio.Event()
        self._over: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._interrupts = 0

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as group:
            tasks: list[asyncio.Task[None]] = []

            def start(work: Callable[[], Awaitable[None]]) -> None:
                tasks.append(group.create_task(self._until_it_fails(work)))

            def interrupt() -> None:
                if not self._over.done():
                    start(self._interrupt)

            start(self._follow_events)
            start(self._follow_output)
            # Who listens before asking misses nothing that follows from it.
            await asyncio.sleep(0)
            loop.add_signal_handler(signal.SIGINT, interrupt)
            loop.add_signal_handler(signal.SIGTERM, interrupt)
            start(self._submit)
            start(self.line.keep_drawing)
            await asyncio.wait([self._over])
            for task in tasks:
                task.cancel()
        self.line.clear()
        return self._over.result()

    async def _until_it_fails(self, work: Callable[[], Awaitable[None]]) -> None:
        """What can go wrong outside of this process ends the command with one message, not the task group."""
        try:
            await work()
        except (click.ClickException, BusError) as error:
            if not self._over.done():
                self._over.set_exception(error)
        except BrokenPipeError:
            self._leave_unread()

    async def _submit(self) -> None:
        if self._submits is not None:
            await _submit(self._bus, self._submits, self._code)
        self._accepted.set()
        await self._look_at_truth()

    async def _follow_events(self) -> None:
        async for subject, body in self._bus.listen(f"{ROOT}.*.*.{self._job}.>"):
            try:
                event = events.decode(body)
            except events.UnreadableEvent:
                continue
            if event_subject(event) != subject:
                # Every service rejects such a message, so nothing follows from it.
                continue
            self.line.take(event)
            self._finish_on(event)

    async def _follow_output(self) -> None:
        async for _, body in self._bus.listen(log_subject(self._job, 0)):
            try:
                lines = msgspec.json.decode(body, type=_LogLines)
            except UNREADABLE:
                continue
            if lines.dropped > 0:
                self.line.say(f"{lines.dropped} lines left out here: rank 0 prints faster than its agent passes on")
            self._show(lines)

    def _show(self, lines: _LogLines) -> None:
        self.line.clear()
        out = sys.stderr if lines.stream == "err" else sys.stdout
        # A file or a program gets what the rank wrote; a terminal obeys control characters.
        shown = [coloured(line) for line in lines.lines] if out.isatty() else lines.lines
        try:
            out.write("".join(line + "\n" for line in shown))
            out.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise click.ClickException(
                f"cannot write the output: {error.strerror}; job {self._job} goes on, `holdfast attach` follows it"
            ) from error

    def _finish_on(self, event: AnyEvent) -> None:
        # Before the answer it is another job, one that has this name already.
        if isinstance(event, JobFinished) and self._accepted.is_set() and not self._over.done():
            if event.outcome == "failed":
                self.line.say(f"job {self._job} failed: {event.reason}")
                if event.traceback:
                    self.line.say(event.traceback.rstrip(), keep="\n\t")
            self._over.set_result(event.exit_code)

    async def _look_at_truth(self) -> None:
        """The end is also read from the database: a word on the bus can be missed, the truth cannot."""
        while not self._over.done():
            await asyncio.sleep(LOOK_EVERY_S)
            try:
                connection = await asyncpg.connect(self._database_url, timeout=LOOK_EVERY_S)
                try:
                    code = await connection.fetchval(
                        "select exit_code from controller.jobs where key = $1", self._job, timeout=LOOK_EVERY_S
                    )
                finally:
                    await connection.close(timeout=LOOK_EVERY_S)
            except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, TimeoutError):
                continue
            if code is not None:
                self._end(int(code))

    async def _interrupt(self) -> None:
        name = self._job
        self._interrupts += 1
        if self._submits is None:
            self.line.say(f"job {name} goes on; `holdfast stop {name}` ends it")
            self._end(INTERRUPTED)
            return
        if self._interrupts > 1:
            if self._accepted.is_set():
                self.line.say(f"left job {name} to stop by itself; `holdfast jobs` shows it")
            else:
                self.line.say(f"left before the controller answered; `holdfast jobs` shows whether job {name} is there")
            self._end(INTERRUPTED)
            return
        self.line.say(f"stopping job {name}; press Ctrl-C again to leave it")
        # Until then another job may have this name, and it would be that one which stops.
        await self._accepted.wait()
        request = StopJob(id=uuid7(), asked_by=asked_by(), job=name)
        answer = await ask(self._bus, CONTROLLER_REQUESTS, request, "controller")
        if not answer.accepted:
            self.line.say(answer.message)

    def _leave_unread(self) -> None:
        """Whoever read our output has gone (`| head`): no reason to end the job."""
        _forget_broken_pipes()
        try:
            self.line.say(f"nobody reads the output any more; job {self._job} goes on, `holdfast attach` follows it")
        except BrokenPipeError:
            _forget_broken_pipes()
        self._end(UNREAD)

    def _end(self, code: int) -> None:
        if not self._over.done():
            self._over.set_result(code)


def _forget_broken_pipes() -> None:
    """What is still buffered for a reader that is gone would be an error once more at the end of the process."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)


class _LogLines(msgspec.Struct):
    rank: int
    stream: str
    lines: list[str]
    generation: int = 0
    dropped: int = 0
