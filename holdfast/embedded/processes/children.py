"""A supervised child: started, watched, restarted when it exits, stopped when it is switched off."""

import asyncio
import contextlib
import enum
import signal
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.embedded.errors import StartFailed
from holdfast.embedded.layout import ChildRecord
from holdfast.embedded.processes.child_process import Process, describe_exit, spawn
from holdfast.embedded.processes.fork_server import CannotFork, ForkRequest
from holdfast.embedded.processes.fork_server_link import ForkServerLink
from holdfast.embedded.processes.logfile import RotatingLog, tail
from holdfast.embedded.processes.logpipe import LogPipe
from holdfast.embedded.processes.restart import GiveUp, Restart, RestartPolicy, RestartRecord, after_exit
from holdfast.embedded.servers.identity import Identity

Probe = Callable[[], Awaitable[None]]
_FAILURE_LOG_LINES = 15
_CAUSE_LOG_LINES = 2000
"""Clients that are refused each write a line."""


@dataclass(frozen=True, kw_only=True)
class ChildSpec:
    """A program to run, with its signs of readiness and its limits."""

    name: str
    argv: tuple[str, ...]
    imports: str = ""
    """Module with the imports of a Python program, whose `argv` is ``python -P -m ...``: such a child is forked by a
    process that has them. "": the program is executed."""
    environment: Mapping[str, str]
    """Complete: nothing is inherited."""
    directory: Path
    probe: Probe | None = None
    """The child is ready when this returns; None: when it calls `announce_ready`."""
    start_limit_s: float = 60.0
    """A start that takes longer has failed."""
    stop_signal: int = signal.SIGTERM
    """Signal to stop the child."""
    stop_grace_s: float = 10.0
    """Time from `stop_signal` to SIGKILL."""
    death_signal: int = signal.SIGKILL
    """Signal that the kernel sends to the child if the supervisor dies."""
    restart: RestartPolicy = field(default_factory=RestartPolicy)
    identity: Identity = Identity.AS_IS
    before_start: Callable[[], None] | None = None
    """Called before each start; may raise an OSError."""
    cause_of_end: Callable[[Iterable[str]], str] | None = None
    """Finds in the last lines of the log why it ended; "" if they do not say it."""
    endpoint: str = ""
    """Address of the process, for display."""


class ChildState(enum.StrEnum):
    OFF = "off"
    STARTING = "starting"
    READY = "ready"
    WAITING = "waiting to restart"
    STOPPING = "stopping"
    FAILED = "failed"


Report = Callable[["Child", str | None], None]


class Child:
    """One child across its restarts. `report` is called on every change, with a line of text if users should see it."""

    def __init__(
        self, spec: ChildSpec, log_file: Path, report: Report, fork_server: ForkServerLink | None = None
    ) -> None:
        self.spec = spec
        self.state = ChildState.OFF
        self.restarts = 0
        self.last_exit: str | None = None
        self._log = RotatingLog(log_file)
        self._pipes: list[LogPipe] = []
        self._report = report
        self._fork_server = fork_server
        self._process: Process | None = None
        self._ready_at: float | None = None
        self._start_timed_out = False
        self._record = RestartRecord()
        self._wanted = asyncio.Event()
        self._unwanted = asyncio.Event()
        self._unwanted.set()
        self._settled = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def record(self) -> ChildRecord | None:
        return None if self._process is None else self._process.record

    @property
    def ready_s(self) -> float | None:
        """Seconds since it became ready, None if it is not."""
        return None if self._ready_at is None else asyncio.get_running_loop().time() - self._ready_at

    def switch_on(self) -> None:
        """Start it, and forget earlier failures."""
        self._record = RestartRecord()
        self._settled.clear()
        self._unwanted.clear()
        self._wanted.set()

    def switch_off(self) -> None:
        """Stop it, and do not restart it."""
        self._wanted.clear()
        self._unwanted.set()
        self._settled.set()

    async def until_ready(self) -> None:
        """Wait until it is ready. Raises StartFailed, with the end of its log, if it cannot be started."""
        await self._settled.wait()
        if self._wanted.is_set():
            return  # It was ready. If it has exited since, it is being restarted.
        lines = "".join(f"\n    {line}" for line in tail(self._log.path, _FAILURE_LOG_LINES)) or " (empty)"
        raise StartFailed(f"{self.name} does not start: {self.last_exit}. The end of {self._log.path}:{lines}")

    async def stop(self) -> None:
        """Switch it off and wait until its process is gone, for little longer than the grace period."""
        self.switch_off()
        await self.until_ended()

    async def until_ended(self) -> None:
        await self._idle.wait()

    def abandon(self) -> None:
        """Do not restart it. Its process gets no signal: the caller kills it."""
        self._wanted.clear()
        self._settled.set()
        if self._process is None:
            self._unwanted.set()  # There is no process, but maybe a delay before a restart to end.

    def end_process(self, number: int | None = None) -> None:
        """Signal its process to stop, by `stop_signal` or another; it is started again, unless it is switched off."""
        if self._process is not None:
            self._process.send_signal(number or self.spec.stop_signal)

    def kill(self) -> None:
        """Switch it off with SIGKILL."""
        self.switch_off()
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)

    async def run(self) -> None:
        """Obey `switch_on` and `switch_off` until cancelled; then no process is left."""
        try:
            while True:
                await self._wanted.wait()
                if not self._wanted.is_set():
                    continue  # Switched off again before this task had its turn.
                action = await self._one_life()
                if self._wanted.is_set() and isinstance(action, Restart):
                    self.state = ChildState.WAITING
                    await self._until_unwanted(within_s=action.delay_s)
                    self.restarts += self._wanted.is_set()
                if not self._wanted.is_set():
                    self.state = ChildState.OFF
                elif isinstance(action, GiveUp):
                    self.state = ChildState.FAILED
                    self._wanted.clear()
                    self._settled.set()
        finally:
            if self._process is not None:
                self._process.kill_and_reap()
            for pipe in self._pipes:
                pipe.close()
            self._log.close()

    async def _one_life(self) -> Restart | GiveUp:
        loop = asyncio.get_running_loop()
        born_at = loop.time()
        self.state = ChildState.STARTING
        self._idle.clear()
        try:
            with self._logged() as output:
                self._process = await self._begin(output)
        except OSError as error:
            self.last_exit = f"cannot run {self.spec.argv[0]}: {error.strerror}"
            ready_s = None
        else:
            ended = await self._oversee(self._process, born_at)
            self._drain_logs()
            self.last_exit = f"{ended}: {cause}" if (cause := self._cause()) else ended
            ready_s = self.ready_s
        self._process = None
        self._ready_at = None
        self._idle.set()
        self._record, action, reason = after_exit(self._record, ready_s=ready_s, policy=self.spec.restart)
        if self._wanted.is_set():
            match action:
                case Restart(delay_s=delay_s):
                    plan = "restarting" if delay_s == 0 else f"restarting in {delay_s:g} s"
                case GiveUp():
                    plan = "giving up"
            self._report(self, f"{self.name}: {self.last_exit}; {plan} ({reason})")
        else:
            self._report(self, f"{self.name} stopped")
        return action

    async def _begin(self, output: int) -> Process:
        """Start a process. Raises OSError if it cannot be run."""
        spec = self.spec
        if spec.before_start is not None:
            spec.before_start()
        if spec.imports and self._fork_server is not None:
            request = ForkRequest(
                arguments=spec.argv[3:],
                imports=spec.imports,
                environment=dict(spec.environment),
                directory=str(spec.directory),
                death_signal=spec.death_signal,
            )
            try:
                return await self._fork_server.fork(request, output)
            except CannotFork as error:
                self._report(self, f"{self.name} is executed, not forked: {error}")
        return spawn(
            spec.argv,
            environment=spec.environment,
            directory=spec.directory,
            output=output,
            death_signal=spec.death_signal,
            identity=spec.identity,
            announces=spec.probe is None,
        )

    async def _oversee(self, process: Process, born_at: float) -> str:
        """Watch one process until it exits. Return a description of the exit."""
        async with asyncio.TaskGroup() as tasks:
            helpers = (
                tasks.create_task(self._bring_up(process, born_at), name=f"{self.name}: bring up"),
                tasks.create_task(self._stop_when_unwanted(process), name=f"{self.name}: stop"),
            )
            code = await process.wait()
            for helper in helpers:
                helper.cancel()
        return f"not ready after {self.spec.start_limit_s:g} s" if self._start_timed_out else describe_exit(code)

    async def _bring_up(self, process: Process, born_at: float) -> None:
        loop = asyncio.get_running_loop()
        self._start_timed_out = False
        self._report(self, None)
        try:
            async with asyncio.timeout(self.spec.start_limit_s):
                await (process.announced() if self.spec.probe is None else self.spec.probe())
        except TimeoutError:
            self._start_timed_out = True
            process.send_signal(signal.SIGKILL)
            return
        if not self._wanted.is_set():
            return
        self._ready_at = loop.time()
        self.state = ChildState.READY
        where = f" on {self.spec.endpoint}" if self.spec.endpoint else ""
        self._report(self, f"{self.name} ready{where} ({self._ready_at - born_at:.2f} s)")
        self._settled.set()

    async def _stop_when_unwanted(self, process: Process) -> None:
        await self._unwanted.wait()
        self.state = ChildState.STOPPING
        process.send_signal(self.spec.stop_signal)
        process.send_signal(signal.SIGCONT)  # A stopped process would never see the signal.
        await asyncio.sleep(self.spec.stop_grace_s)
        process.send_signal(signal.SIGKILL)

    async def _until_unwanted(self, *, within_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._unwanted.wait()

    def _cause(self) -> str:
        find = self.spec.cause_of_end
        return "" if find is None else find(tail(self._log.path, _CAUSE_LOG_LINES))

    @contextlib.contextmanager
    def _logged(self) -> Iterator[int]:
        pipe = LogPipe(self._log)
        self._pipes = [known for known in self._pipes if known.open] + [pipe]
        try:
            yield pipe.writing_end
        finally:
            pipe.close_writing_end()

    def _drain_logs(self) -> None:
        for pipe in self._pipes:
            pipe.drain()
