"""Real servers that a test owns: started, killed and started again as the test likes."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.parse import quote

from holdfast.bus.accounts import OPERATOR, users
from holdfast.embedded.processes.children import ChildSpec
from holdfast.embedded.servers import nats_monitor
from holdfast.embedded.servers.credentials import DATABASE, HOST
from holdfast.embedded.servers.identity import choose_identity
from holdfast.embedded.servers.nats import nats_spec
from holdfast.embedded.servers.ports import reserve_ports
from holdfast.embedded.servers.postgres import (
    admin_url,
    clear_stale_pid,
    ensure_database,
    initialise,
    postgres_spec,
    programs,
)

PASSWORD = "for-tests"
START_LIMIT_S = 90
"""With the making of a database, which is a second of work and one of syncing on an idle disk."""


def free_port() -> int:
    """A port that is free now, and that no outgoing connection is given while no process listens on it."""
    with reserve_ports({}, None) as ports:
        return ports.nats


def stands(pid: int) -> bool:
    """Return True if every thread of a process has stopped: a signal takes a moment to reach them."""
    return all(_stands(task) for task in Path(f"/proc/{pid}/task").iterdir())


def _stands(task: Path) -> bool:
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0] == "T"
    except (FileNotFoundError, ProcessLookupError):
        # A thread that has ended does nothing either.
        return True


def children(parent: int) -> list[int]:
    """The children of a process, the oldest first; its own list of them leaves some out while others end."""
    stats = {int(entry.name): entry / "stat" for entry in Path("/proc").iterdir() if entry.name.isdecimal()}
    found: list[tuple[int, int]] = []
    for pid, stat in stats.items():
        with suppress(FileNotFoundError, ProcessLookupError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[1]) == parent:
                found.append((int(fields[19]), pid))
    return [pid for _, pid in sorted(found)]


async def _end_of(process: subprocess.Popen[bytes]) -> None:
    pidfd = os.pidfd_open(process.pid)
    gone = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(pidfd, gone.set)
    try:
        await gone.wait()
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)


class Server(ABC):
    """A server process on a fixed port, with its files in `directory`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.directory.mkdir(parents=True, exist_ok=True)
        # Held also while it is down: somebody else would be given them at once.
        self._held = ExitStack()
        self.ports = self._held.enter_context(reserve_ports({}, None))
        self.process: subprocess.Popen[bytes] | None = None

    @property
    @abstractmethod
    def port(self) -> int:
        """Address of the server."""

    @abstractmethod
    async def spec(self) -> ChildSpec:
        """Command line of the server."""

    async def start(self) -> None:
        """Start it and wait until it answers; a start that meets its killed predecessor's remains is repeated."""
        async with asyncio.timeout(START_LIMIT_S):
            spec = await self.spec()
            assert spec.probe is not None
            while True:
                self.process = self._spawn(spec)
                probe = asyncio.ensure_future(spec.probe())
                ended = asyncio.ensure_future(_end_of(self.process))
                await asyncio.wait([probe, ended], return_when=asyncio.FIRST_COMPLETED)
                ended.cancel()
                if self.process.poll() is None:
                    return await probe
                probe.cancel()

    def _spawn(self, spec: ChildSpec) -> subprocess.Popen[bytes]:
        with open(self.directory / "log", "ab") as log:
            return subprocess.Popen(
                spec.argv,
                env=dict(spec.environment),
                cwd=spec.directory,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=spec.identity.enter,
            )

    def kill(self) -> None:
        """SIGKILL; returns when it is gone."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    async def freeze(self) -> None:
        """SIGSTOP: it keeps its connections and says nothing; returns when every thread stands."""
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGSTOP)
        tasks = Path(f"/proc/{self.process.pid}/task")
        async with asyncio.timeout(START_LIMIT_S):
            while any(not _stands(task) for task in tasks.iterdir()):  # noqa: ASYNC110 - the kernel sends no event
                await asyncio.sleep(0.001)

    def thaw(self) -> None:
        """SIGCONT."""
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGCONT)

    def stop(self) -> None:
        """End it for good."""
        if self.process is not None and self.process.poll() is None:
            self.kill()
        self._held.close()


class NatsServer(Server):
    """nats-server as the embedded cluster runs it."""

    nodes: tuple[str, ...] = ()
    """Nodes with a user of their own. As the operator, which `url` names, a test may play any process."""

    @property
    def port(self) -> int:
        """Address of the server."""
        return self.ports.nats

    @property
    def url(self) -> str:
        """Address of the server, with credentials."""
        return self.url_of(OPERATOR)

    def url_of(self, user: str, password: str = "") -> str:
        """Address of the server as one of its users sees it."""
        return f"nats://{user}:{password or f'{user}-{PASSWORD}'}@{HOST}:{self.port}"

    def passwords(self) -> dict[str, str]:
        """The password of each user."""
        return {user: f"{user}-{PASSWORD}" for user in users(self.nodes)}

    async def spec(self) -> ChildSpec:
        """Command line of the server."""
        return self._spec(self.passwords(), self.nodes)

    async def reload(self, passwords: Mapping[str, str], nodes: Iterable[str]) -> None:
        """Have it read other accounts while it runs."""
        self._spec(passwords, nodes)
        assert self.process is not None
        await nats_monitor.reload(f"http://{HOST}:{self.ports.nats_monitor}", self.process.pid)

    def _spec(self, passwords: Mapping[str, str], nodes: Iterable[str]) -> ChildSpec:
        monitor = self.ports.nats_monitor
        return nats_spec(self.directory, port=self.port, monitor_port=monitor, passwords=passwords, nodes=nodes)


class PostgresServer(Server):
    """Postgres as the embedded cluster runs it."""

    @property
    def port(self) -> int:
        """Address of the server."""
        return self.ports.postgres

    def kill(self) -> None:
        """SIGKILL to it and its backends, which would still do what they were told; returns when all are gone."""
        assert self.process is not None
        # It makes no further ones.
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        backends = [os.pidfd_open(pid) for pid in children(self.process.pid)]
        super().kill()
        for backend in backends:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(backend, signal.SIGKILL)
            select.select([backend], [], [])
            os.close(backend)

    @property
    def url(self) -> str:
        """The database as its administrator sees it."""
        return admin_url(self.port, PASSWORD, DATABASE)

    def url_of(self, role: str, password: str) -> str:
        """The database as one of the roles sees it."""
        return f"postgresql://{role}:{quote(password)}@{HOST}:{self.port}/{DATABASE}"

    async def spec(self) -> ChildSpec:
        """Command line of the server; missing files are created."""
        identity = choose_identity(programs() / "postgres", self.directory)
        await initialise(self.directory, password=PASSWORD, identity=identity, log=self.directory / "initdb.log")
        clear_stale_pid(self.directory)
        return postgres_spec(self.directory, port=self.port, password=PASSWORD, identity=identity)

    async def start(self) -> None:
        """Start it and wait until it answers, with its database."""
        await super().start()
        await ensure_database(self.port, PASSWORD)
