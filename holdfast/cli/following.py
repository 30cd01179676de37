"""Following one job from its submission to its end: output, decisions, a status line, the exit code."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable

import asyncpg
import click
import msgspec

from holdfast import events
from holdfast.bus import Bus
from holdfast.bus.nats import connect
from holdfast.cli.ask import ask, asked_by
from holdfast.cli.status_line import StatusLine
from holdfast.event_parts import JobSpec
from holdfast.events import AnyEvent, JobFinished
from holdfast.ids import uuid7
from holdfast.requests import CONTROLLER_REQUESTS, StopJob, SubmitJob
from holdfast.subjects import ROOT, event_subject, log_subject

LOOK_EVERY_S = 2.0
"""How often the truth is asked whether the job is over, should the bus have lost the word."""


class RefusedError(click.ClickException):
    """The controller did not accept the job."""


async def follow(spec: JobSpec, nats_url: str, database_url: str, *, detach: bool) -> int:
    """Submit `spec` and stay with it; returns the exit code.

    Raises:
        click.ClickException: refused, or nobody answers.
    """
    bus = await connect(nats_url, "holdfast run")
    try:
        if detach:
            await _submit(bus, spec)
            click.echo(spec.name)
            return 0
        return await _Follower(spec, bus, database_url).run()
    finally:
        await bus.close()


async def _submit(bus: Bus, spec: JobSpec) -> None:
    request = SubmitJob(id=uuid7(), asked_by=asked_by(), spec=spec)
    answer = await ask(bus, CONTROLLER_REQUESTS, request, "controller")
    if not answer.accepted:
        raise RefusedError(answer.message)


class _Follower:
    def __init__(self, spec: JobSpec, bus: Bus, database_url: str) -> None:
        self._spec = spec
        self._bus = bus
        self._database_url = database_url
        self._line = StatusLine(spec, sys.stderr)
        self._over: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._interrupts = 0

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as group:
            side: list[asyncio.Task[None]] = []

            def start(work: Callable[[], object]) -> None:
                side.append(group.create_task(work()))  # type: ignore[arg-type]

            start(self._follow_events)
            start(self._follow_output)
            # Who listens before asking misses nothing that follows from it.
            await asyncio.sleep(0)
            loop.add_signal_handler(signal.SIGINT, lambda: start(self._interrupt))
            loop.add_signal_handler(signal.SIGTERM, lambda: start(self._interrupt))
            try:
                await _submit(self._bus, self._spec)
                start(self._look_at_truth)
                start(self._line.keep_drawing)
                return await self._over
            finally:
                self._line.clear()
                for task in side:
                    task.cancel()

    async def _follow_events(self) -> None:
        async for subject, body in self._bus.listen(f"{ROOT}.*.*.{self._spec.name}.>"):
            try:
                event = events.decode(body)
            except events.UnreadableEvent:
                continue
            if event_subject(event) != subject:
                # Every service rejects such a message, so nothing follows from it.
                continue
            self._line.take(event)
            self._finish_on(event)

    async def _follow_output(self) -> None:
        async for _, body in self._bus.listen(log_subject(self._spec.name, 0)):
            try:
                lines = msgspec.json.decode(body, type=_LogLines)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue
            self._line.clear()
            out = sys.stderr if lines.stream == "err" else sys.stdout
            out.write("".join(line + "\n" for line in lines.lines))
            out.flush()

    def _finish_on(self, event: AnyEvent) -> None:
        if isinstance(event, JobFinished) and not self._over.done():
            if event.outcome == "failed":
                self._line.say(f"job {self._spec.name} failed: {event.reason}")
                if event.traceback:
                    self._line.say(event.traceback.rstrip())
            self._over.set_result(event.exit_code)

    async def _look_at_truth(self) -> None:
        """The end is also read from the database: a word on the bus can be missed, the truth cannot."""
        while not self._over.done():
            await asyncio.sleep(LOOK_EVERY_S)
            try:
                connection = await asyncpg.connect(self._database_url, timeout=LOOK_EVERY_S)
                try:
                    code = await connection.fetchval(
                        "select exit_code from controller.jobs where key = $1", self._spec.name, timeout=LOOK_EVERY_S
                    )
                finally:
                    await connection.close(timeout=LOOK_EVERY_S)
            except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, TimeoutError):
                continue
            if code is not None and not self._over.done():
                self._over.set_result(int(code))

    async def _interrupt(self) -> None:
        self._interrupts += 1
        if self._interrupts > 1:
            self._line.say(f"left job {self._spec.name} to stop by itself; `holdfast jobs` shows it")
            if not self._over.done():
                self._over.set_result(130)
            return
        self._line.say(f"stopping job {self._spec.name}; press Ctrl-C again to leave it")
        request = StopJob(id=uuid7(), asked_by=asked_by(), job=self._spec.name)
        answer = await ask(self._bus, CONTROLLER_REQUESTS, request, "controller")
        if not answer.accepted:
            self._line.say(answer.message)


class _LogLines(msgspec.Struct):
    rank: int
    stream: str
    lines: list[str]
    generation: int = 0
