"""A node for tests: a real agent process with its zygote, on a real NATS, given orders as a controller would.

The zygote has torch, which takes seconds, so the next node in the same place finds the one of the node before; of
everything else it finds nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from holdfast import events
from holdfast.bus import Bus, Message
from holdfast.bus.nats import connect
from holdfast.events import AnyEvent, Event, NodeRegistered
from holdfast.events.parts.job import JobSpec, Purpose
from holdfast.fresh_ids import uuid7
from holdfast.node.frames import Frames, framed
from holdfast.orders.node import NodeOrder, Placement
from holdfast.subjects import DESIRED_BUCKET
from holdfast_agent.companions.zygote_link import LOG_FILE
from holdfast_agent.zygote.wire import Attach, Welcome, reports
from holdfast_agent.zygote.zygote import LOCK_FILE, PID_FILE, PORTS_FILE, SOCKET
from tests.nursery import public_environment
from tests.scenes.order_keys import OF_AGENTS, signed
from tests.warm_python import WarmHoldfast

E = TypeVar("E", bound=Event)

WAIT_S = 60.0
OF_THE_ZYGOTE = (SOCKET, PID_FILE, LOCK_FILE, PORTS_FILE, LOG_FILE)


class Heard:
    """Everything that was said on the bus about one node, and waiting for what will be."""

    def __init__(self, bus: Bus, node: str) -> None:
        self._bus = bus
        self._node = node
        self._changed = asyncio.Condition()
        self.events: list[tuple[AnyEvent, datetime]] = []

    async def listen(self, stream: str) -> None:
        """Hear what is said, each thing once: a bus that was killed may tell again what was acknowledged."""
        known: set[str] = set()
        async for delivery in self._bus.consume(
            stream, f"test-{self._node}-{stream}", [f"holdfast.v1.*.*.*.{self._node}"]
        ):
            event = events.decode(delivery.body)
            if event.id not in known:
                known.add(event.id)
                async with self._changed:
                    self.events.append((event, datetime.now().astimezone()))
                    self._changed.notify_all()
            await delivery.ack()

    def all(self, kind: type[E], such: Callable[[E], bool] = lambda _: True) -> list[E]:
        return [event for event, _ in self.events if isinstance(event, kind) and such(event)]

    async def wait(self, kind: type[E], such: Callable[[E], bool] = lambda _: True) -> E:
        """The first such event, said already or to come."""
        await self.until(lambda: bool(self.all(kind, such)))
        return self.all(kind, such)[0]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition of what was heard holds."""
        async with asyncio.timeout(WAIT_S), self._changed:
            await self._changed.wait_for(condition)

    def heard_at(self, event: Event) -> datetime:
        return next(at for other, at in self.events if other.id == event.id)


class Node:
    """A node named `name`, with its state in `directory`, its log beside it."""

    def __init__(
        self, name: str, directory: Path, url: str, bus: Bus, heard: Heard, *, is_executed: bool = False
    ) -> None:
        self.name = name
        self.directory = directory
        self.bus = bus
        self.heard = heard
        self._url = url
        self._log = directory.parent / f"{name}.log"
        self._process: subprocess.Popen[Any] | None = None
        self._popen: type[subprocess.Popen[Any]] = subprocess.Popen if is_executed else WarmHoldfast
        self.environment: dict[str, str] = {}
        self.passed: tuple[int, ...] = ()
        """Descriptors that the agent inherits."""

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = self._popen(
                (sys.executable, "-P", "-m", "holdfast_agent", "--node", self.name, "--state-dir", str(self.directory)),
                env=public_environment() | {"HOLDFAST_NATS_URL": self._url} | OF_AGENTS | self.environment,
                stdout=log,
                stderr=log,
                pass_fds=self.passed,
            )

    @property
    def process(self) -> subprocess.Popen[Any]:
        assert self._process is not None
        return self._process

    def kill_agent(self) -> None:
        self.process.kill()
        self.process.wait()

    async def end_agent(self) -> int:
        self.process.terminate()
        async with asyncio.timeout(WAIT_S):
            return await asyncio.to_thread(self.process.wait)

    @property
    def zygote(self) -> int:
        return int((self.directory / "zygote.pid").read_text())

    async def registered(self) -> NodeRegistered:
        """The newest registration, which may be one from before the vault was there."""
        await self.heard.wait(NodeRegistered)
        return self.heard.all(NodeRegistered)[-1]

    async def complete(self, after: NodeRegistered | None = None) -> NodeRegistered:
        """The registration with zygote and vault, of which there is one; or the next one `after` that.

        Its number says nothing: if the zygote comes before the vault the node registers twice, else once.
        """

        def whole() -> list[NodeRegistered]:
            return self.heard.all(NodeRegistered, lambda event: event.facts.vault_port is not None)

        def later() -> list[NodeRegistered]:
            return whole()[whole().index(after) + 1 :] if after is not None else whole()

        await self.heard.until(lambda: bool(later()))
        return later()[0]

    async def order(
        self, job: JobSpec | None, generation: int, port: int = 0, *, purpose: Purpose = "train", **fields: object
    ) -> NodeOrder:
        placement = None
        if job:
            placement = Placement(job=job, node_rank=0, master_addr="127.0.0.1", master_port=port, purpose=purpose)
        order = NodeOrder(
            node=self.name,
            epoch=1,
            generation=generation,
            job=job.name if job else None,
            placement=placement,
            **{"cause": uuid7(), **fields},  # type: ignore[arg-type]
        )
        await self.put(signed(order))
        return order

    async def put(self, body: bytes) -> None:
        await self.bus.put(DESIRED_BUCKET, NodeOrder.key_of(self.name), body)

    def print_logs(self) -> None:
        """What the agent and its zygote said, for whoever reads why a test failed."""
        for path in (self._log, self.directory / LOG_FILE):
            if path.exists():
                print(f"--- {path}\n{path.read_text()[-20_000:]}")

    async def clean(self) -> None:
        """Leave nothing but a zygote that has no children."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        async with asyncio.timeout(WAIT_S):
            while vaults := self._vaults():
                for vault in vaults:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(vault, signal.SIGKILL)
                    await gone(vault)
            while children := self._zygotes_children():
                for child in children:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(child, signal.SIGKILL)
                await asyncio.sleep(0.01)
            await self._zygote_at_rest()
        shutil.rmtree((self.directory / "ledgers").resolve(), ignore_errors=True)
        for path in self.directory.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.name not in OF_THE_ZYGOTE:
                path.unlink()

    def _vaults(self) -> list[int]:
        """Those that do not answer yet, or no more, are here too: they would write among the next node's files."""
        found: list[int] = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                    words = (entry / "cmdline").read_bytes().split(b"\0")
                    if str(self.directory).encode() in words and b"holdfast_vault" in words:
                        found.append(int(entry.name))
        return found

    async def _zygote_at_rest(self) -> None:
        """Wait until the zygote, if there is one, has turned to something else than the ends of its children.

        It reaps a rank before it writes the rest of its output, into a log that the next node would take for its own.
        """
        frames = Frames(reports)
        folder = os.open(self.directory, os.O_PATH | os.O_DIRECTORY)
        try:
            reader, writer = await asyncio.open_unix_connection(f"/proc/self/fd/{folder}/{SOCKET}")
        except (FileNotFoundError, ConnectionRefusedError):
            return
        finally:
            os.close(folder)
        try:
            writer.write(framed(Attach(orphan_s=WAIT_S)))
            while data := await reader.read(1 << 16):
                if any(isinstance(report, Welcome) for report in frames.feed(data)):
                    return
        except ConnectionError:
            return  # it has just ended
        finally:
            writer.close()

    def _zygotes_children(self) -> list[int]:
        try:
            return [int(pid) for pid in Path(f"/proc/{self.zygote}/task/{self.zygote}/children").read_text().split()]
        except (FileNotFoundError, ValueError):
            return []


@contextlib.asynccontextmanager
async def node(
    name: str, directory: Path, url: str, environment: Mapping[str, str] | None = None, *, is_executed: bool = False
) -> AsyncIterator[Node]:
    """A node that is registered; whatever is left of it is gone at the end, but for its zygote.

    `is_executed`: its agent is a program of its own, with its environment as the kernel shows it, and no fork.
    """
    bus = await connect(url, f"test-{name}", timeout_s=WAIT_S)
    heard = Heard(bus, name)
    listeners = [asyncio.create_task(heard.listen(stream)) for stream in ("EVIDENCE", "DECISIONS", "METRICS")]
    it = Node(name, directory, url, bus, heard, is_executed=is_executed)
    it.environment = dict(environment or {})
    it.start()
    try:
        await it.registered()
        yield it
    except BaseException:
        it.print_logs()
        raise
    finally:
        await it.clean()
        for listener in listeners:
            listener.cancel()
        await asyncio.wait(listeners)
        await bus.close()


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what other processes do, which raises no event here."""
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def gone(pid: int) -> None:
    """Wait until the process has ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(descriptor, ended.set)
    try:
        async with asyncio.timeout(WAIT_S):
            await ended.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


def parent_of(pid: int) -> int:
    """The pid of the process's parent."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


__all__ = ["Heard", "Message", "Node", "gone", "node", "parent_of", "until"]
