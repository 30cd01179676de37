"""A training job followed from its submission, or from now on: output, decisions, a status line, the exit code."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Awaitable, Callable
from functools import partial

import asyncpg
import click
import msgspec

from holdfast.bus import Bus
from holdfast.cli.connect.bus import connected
from holdfast.cli.connect.database import DatabaseUnreachable, reading, working
from holdfast.cli.follow.failures import RankFailures, end_of_output
from holdfast.cli.follow.follower import JobFollower, submit
from holdfast.cli.follow.rank_output import LogLines
from holdfast.cli.follow.status_line import StatusLine
from holdfast.cli.incident_ids import numbers_of
from holdfast.cli.output.tables import coloured
from holdfast.code.snapshot import Snapshot
from holdfast.decoding import UNREADABLE
from holdfast.events import (
    AnyEvent,
    CheckpointSaved,
    GenerationStarted,
    IncidentOpened,
    JobFinished,
    ProcessExited,
    RanksStarted,
    StepsKept,
)
from holdfast.events.parts.job import JobSpec
from holdfast.events.parts.launch import STREAMS, Streams, streams_of
from holdfast.exit_codes import INTERRUPTED
from holdfast.subjects import log_subject

READ_EVERY_S = 2.0
"""Interval of reads of the exit code from the database, in case the bus lost the event."""

NUMBER_WITHIN_S = 1.0
"""Longest wait for the number of a new incident; without it the incident is shown by its id."""

POOL_EVERY_S = 5.0
"""Interval of reads of the pool, on a terminal."""
_POOL = "select count(*) as free from standby.nodes where state = 'standby'"

CURE = (
    "Open it to other users, or choose the user of ranks with [jobs] run_as or `holdfast up --run-as`: docs/security.md"
)

OUTPUT_CLOSED = 141
"""Exit code of a command whose output is no longer read: 128 + SIGPIPE, as in a shell."""

_NAME_TAKEN = """
select null::timestamptz as ended_at from controller.jobs where key = $1
union all select ended_at from controller.used_names where key = $1 limit 1
"""

_END = """
select exit_code from controller.jobs where key = $1 and exit_code is not null
union all select null where not exists (select from controller.jobs where key = $1)
"""


class JobStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A job's row in the database; `exit_code` is None until it has ended."""

    job: str
    phase: str
    generation: int
    nodes: int
    exit_code: int | None
    reason: str
    first_node: str | None = None
    """The node that runs rank 0; None: not recorded yet."""


async def follow(
    spec: JobSpec,
    nats_url: str,
    database_url: str,
    *,
    detach: bool = False,
    code: Snapshot | None = None,
    own_cluster_ended: Callable[[], Awaitable[str]] | None = None,
) -> int:
    """Submit `spec` with its code, follow the job, and return its exit code. Raises ClickException as `submit` does.

    `own_cluster_ended` is given for a cluster that ends with the command, and the job with it: it waits until that
    cluster has ended before, and returns why.
    """
    if own_cluster_ended is None:
        await _refuse_taken_name(spec.name, database_url)
    async with connected(nats_url, "run") as bus:
        if detach:
            await submit(bus, spec, code)
            click.echo(spec.name)
            click.echo(f"`holdfast attach {spec.name}` follows it", err=True)
            return 0
        follower = TrainingJobFollower(spec.name, bus, database_url, spec, code)
        follower.own_cluster_ended = own_cluster_ended
        follower.line.expects_nodes = own_cluster_ended is not None
        follower.line.is_record_kept = own_cluster_ended is None
        return await follower.run()


async def _refuse_taken_name(job: str, database_url: str) -> None:
    """Raise click.ClickException if a job has the name, before its code is sent. The controller has the last word."""
    try:
        async with reading(database_url) as connection, working(database_url):
            row = await connection.fetchrow(_NAME_TAKEN, job)
    except (DatabaseUnreachable, asyncpg.InternalClientError):
        return
    if row is not None:
        what = f"ended on {row['ended_at']:%Y-%m-%d} and was forgotten" if row["ended_at"] else "exists already"
        raise click.ClickException(f"a job named {job} {what}; choose another --name")


async def attach(status: JobStatus, nats_url: str, database_url: str) -> int:
    """Follow a job submitted before, and return its exit code. Raises click.ClickException if nothing answers."""
    async with connected(nats_url, "attach") as bus:
        follower = TrainingJobFollower(status.job, bus, database_url)
        follower.nodes = (status.first_node,) if status.first_node else ()
        follower.line.show_state(status.phase, status.generation, status.nodes)
        return await follower.run()


class TrainingJobFollower(JobFollower[int]):
    """A training job; the result is its exit code. Ctrl-C stops a job that this command submits, and no other."""

    def __init__(
        self, job: str, bus: Bus, database_url: str, submits: JobSpec | None = None, code: Snapshot | None = None
    ) -> None:
        super().__init__(job, bus)
        self._submits = submits
        self._code = code
        self._database_url = database_url
        self.line = StatusLine(job, sys.stderr)
        self._failures = RankFailures(job, partial(self.line.print, keep="\n\t"), self._shows_errors_of)
        if submits is not None:
            self._failures.ranks = submits.nnodes * submits.nproc_per_node
            self._failures.source_root = submits.code_root
        self._accepted = asyncio.Event()
        self._interrupts = 0
        self.own_cluster_ended: Callable[[], Awaitable[str]] | None = None
        self._keeps_in_memory = False
        self._saved_step = 0
        self.nodes: tuple[str, ...] = ()
        """The nodes of the present generation, by node rank; only the first, or none, if they are not known."""
        self._user: str | None = None
        self._user_of: tuple[int | None, str] = (None, "")
        self._users_differ = False

    async def run(self) -> int:
        try:
            return await self.follow(
                self._take_output, self._submit, self.line.keep_drawing, self._watch_cluster, self._watch_pool
            )
        finally:
            self.line.clear()
            self._show_what_is_lost()

    async def prepare(self, event: AnyEvent) -> None:
        """Find the number of a new incident, by which people name it."""
        if not isinstance(event, IncidentOpened) or event.incident is None:
            return
        url = self._database_url
        with contextlib.suppress(click.ClickException, asyncpg.InternalClientError, TimeoutError):
            async with asyncio.timeout(NUMBER_WITHIN_S), reading(url) as connection, working(url):
                self.line.incident_numbers |= await numbers_of(connection, [event.incident])

    def take(self, event: AnyEvent) -> None:
        """Show the event; a job that has ended ends the command."""
        if isinstance(event, StepsKept):
            self._keeps_in_memory = True
        if isinstance(event, CheckpointSaved):
            self._saved_step = max(self._saved_step, event.step)
        if isinstance(event, ProcessExited):
            self._failures.take(event)
        if isinstance(event, JobFinished | GenerationStarted):
            self._failures.flush()
        self.line.take(event)
        if isinstance(event, GenerationStarted):
            self.nodes = event.nodes
            self._failures.ranks, self._failures.generation = event.world_size, event.generation or 0
        if isinstance(event, RanksStarted):
            self._show_user(event)
        # Before the controller accepts, the event is of another job that has this name already.
        if isinstance(event, JobFinished) and self._accepted.is_set() and not self.result.done():
            if event.outcome == "failed":
                traceback = end_of_output(event.traceback or "")
                if not self._failures.has_shown(traceback):
                    self.line.print(self._failures.readable(traceback), keep="\n\t")
                if self._user and "PermissionError" in (event.traceback or ""):
                    self.line.print(f"its ranks run as {self._user}, which may write to the job's directory. {CURE}")
            self.finish(event.exit_code)

    async def _watch_cluster(self) -> None:
        """End with a cluster for one run that ends by itself."""
        if self.own_cluster_ended is not None:
            raise click.ClickException(await self.own_cluster_ended())

    async def _watch_pool(self) -> None:
        """Keep the number of free nodes for the line on a terminal."""
        while sys.stderr.isatty() and self.own_cluster_ended is None:
            row = await self.recorded(self._database_url, POOL_EVERY_S, _POOL)
            self.line.numbers.free_nodes = int(row["free"])

    def _show_what_is_lost(self) -> None:
        """Report the steps that are only in the memory of a cluster that ends now."""
        if self.own_cluster_ended is None or not self._keeps_in_memory or self.line.numbers.step <= self._saved_step:
            return
        saved = f"step {self._saved_step}" if self._saved_step else "no step"
        with contextlib.suppress(BrokenPipeError):
            self.line.print(
                f"{self.job} kept its steps in memory, which ends with its cluster: {saved} is on the disk, of "
                f"{self.line.numbers.step} done. --persist-every writes more often; in a cluster that stays "
                "(`holdfast up`) they remain"
            )

    def _show_user(self, event: RanksStarted) -> None:
        """Report once that the script may do everything on its machines, or that its ranks have different users."""
        if event.adopted:
            return
        if event.root_because and self._user is None:
            self.line.print(f"the ranks of {self.job} run as root: {event.root_because}. {CURE}")
        generation, user = self._user_of
        if generation == event.generation and user != event.user and not self._users_differ:
            self._users_differ = True
            both = " and ".join(name or "the agent's user" for name in sorted((user, event.user)))
            self.line.print(
                f"the ranks of {self.job} run as different users, {both}, and cannot write each other's checkpoints: "
                "give all nodes the same [jobs] run_as"
            )
        self._user_of = event.generation, event.user
        self._user = event.user

    async def interrupt(self) -> None:
        """Stop the job; leave it when pressed twice, or when another command submitted it."""
        job = self.job
        self._interrupts += 1
        if self._submits is None:
            self.line.print(f"job {job} continues; `holdfast stop {job}` stops it")
            self.finish(INTERRUPTED)
            return
        if self._interrupts > 1:
            if self.own_cluster_ended is not None:
                self.line.print(f"ending job {job} with its cluster")
            elif self._accepted.is_set():
                self.line.print(f"left job {job} to stop by itself; `holdfast jobs` shows it")
            else:
                self.line.print(f"left before the controller answered; `holdfast jobs` shows whether job {job} exists")
            self.finish(INTERRUPTED)
            return
        again = "to end it at once" if self.own_cluster_ended is not None else "to leave it"
        self.line.print(f"stopping job {job}; press Ctrl-C again {again}")
        # Until the controller accepts, another job may have this name, and would be stopped instead.
        await self._accepted.wait()
        answer = await self.stop()
        if not answer.accepted:
            self.line.print(answer.message)

    def output_closed(self) -> None:
        """Leave the job running: the end of the process that read our output (`| head`) is no reason to stop it."""
        _discard_unread_output()
        if self.own_cluster_ended is not None:
            # Its end is the job's, which goes on unseen.
            return
        try:
            self.line.print(f"the output is no longer read; job {self.job} continues, `holdfast attach` follows it")
        except BrokenPipeError:
            _discard_unread_output()
        self.finish(OUTPUT_CLOSED)

    async def _submit(self) -> None:
        if self._submits is not None:
            await self.submit(self._submits, self._code)
        self._accepted.set()
        row = await self.recorded(self._database_url, READ_EVERY_S, _END, self.job)
        if row["exit_code"] is None:
            raise click.ClickException(
                f"the database has no job {self.job} any more: it was restored from a backup. Submit the job again"
            )
        self.finish(int(row["exit_code"]))

    async def _take_output(self) -> None:
        async for subject, body in self.bus.listen(log_subject(self.job, "*", "*")):
            try:
                lines = msgspec.json.decode(body, type=LogLines)
            except UNREADABLE:
                continue
            # Any node may print for any job, under its own name.
            if (node := self._node_of(lines.rank)) is not None and subject != log_subject(self.job, lines.rank, node):
                continue
            prefix = self._prefix(lines)
            if prefix is None:
                continue
            if missing := self.line.output.missing(lines):
                self.line.print(
                    f"{missing} lines omitted: rank {lines.rank} prints faster than is forwarded. Its log has them"
                )
            self._show(lines, prefix)

    def _shows_errors_of(self, rank: int) -> bool:
        """Return True if what this rank writes to stderr appears here."""
        return self._prefix(LogLines(rank=rank, stream="err", lines=[])) is not None

    def _node_of(self, rank: int) -> str | None:
        """Return the node that runs the rank; None if that is not known."""
        at = rank // self._submits.nproc_per_node if self._submits is not None else rank
        return self.nodes[at] if 0 <= at < len(self.nodes) else None

    def _prefix(self, lines: LogLines) -> str | None:
        """Return what stands before each line, "" as a rule, as torchrun's --tee has it; None: they are not shown."""
        if self._submits is None:
            return "" if lines.rank == 0 else None
        launch, local_rank = self._submits.launch, lines.rank % self._submits.nproc_per_node
        stream = STREAMS.get(lines.stream, Streams.NONE)
        if not launch.shown(lines.rank, local_rank) & stream:
            return None
        return f"[{launch.role}{local_rank}]:" if streams_of(launch.tee, local_rank) & stream else ""

    def _show(self, lines: LogLines, prefix: str) -> None:
        self.line.clear()
        out = sys.stderr if lines.stream == "err" else sys.stdout
        # A file or a program gets what the rank wrote; a terminal obeys control characters.
        shown = [coloured(line) for line in lines.lines] if out.isatty() else lines.lines
        try:
            out.write(self.line.output.text(lines, shown, prefix, on_terminal=out.isatty()))
            out.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise click.ClickException(
                f"cannot write the output: {error.strerror}; job {self.job} continues, `holdfast attach` follows it"
            ) from error


def _discard_unread_output() -> None:
    """Discard what is buffered for a reader that is gone: it would raise again when the process ends."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
