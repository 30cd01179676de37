"""What `chaos.py` does to a cluster: kills, stops, lost nodes, cut links, full disks, clocks that jump."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import machine
from chaos_checks import Training
from chaos_clocks import Clocks
from launchers import Cluster, LauncherFailed

from holdfast.embedded.control import PowerOff, PowerOn, ask
from holdfast.embedded.fabric import DEVICE
from holdfast.embedded.layout import SERVICES, ClusterLayout
from holdfast.faults.kinds.network import DropTraffic, LinkDown

PROCESSES = ("rank", "zygote", "vault", "agent", *SERVICES, "nats", "postgres")
WITH_CLOCKS = ("vault", "agent", *SERVICES)
JUMP_S = (-600, 600)
"""Farthest jumps of a clock."""
LASTS_S = (0.5, 6.0)
"""Shortest and longest duration of a fault that is undone."""
DISK_BYTES = 512 << 20
"""An agent reports less than 256 MiB of free space."""
MEMBERS_SHARE = 0.7
CONTROL_S = 60.0
UP_S = 200.0


class NotNow(Exception):
    """The fault cannot be injected at this moment; the message says why."""


class Injected(NamedTuple):
    """A fault that was injected. `memory_of`: nodes that lost their memory. `undo` ends it at `until`."""

    kind: str
    target: str
    at: float
    until: float
    undo: Callable[[], None]
    memory_of: frozenset[str] = frozenset()

    @property
    def lasted_s(self) -> float:
        return self.until - self.at

    def __str__(self) -> str:
        return f"{self.kind} {self.target}".strip()


class Faults:
    """The faults that this cluster and this machine allow."""

    def __init__(
        self, running: Cluster, training: Training, chance: random.Random, up: tuple[str, ...], clocks: Clocks
    ) -> None:
        self._running = running
        self._training = training
        self._chance = chance
        self._up = up
        self._clocks = clocks
        self._layout = ClusterLayout(running.directory)
        self._supervisor_killed_at = 0.0
        self.kinds: dict[str, Callable[[str], Injected]] = {}
        self.kinds |= {f"kill {name}": self._kill for name in PROCESSES}
        self.kinds |= {f"stop {name}": self._stop for name in PROCESSES}
        self.kinds |= {"lose node": self._lose_node, "kill supervisor": self._kill_supervisor}
        if "LD_PRELOAD" in running.environment:
            self.kinds |= {f"jump {name}": self._jump for name in WITH_CLOCKS}
        if running.info.fabric is not None:
            self.kinds |= {"cut bus": self._cut_bus, "cut nodes": self._cut_nodes, "pull link": self._pull_link}
        else:
            self.kinds |= {"kill nursery": self._kill, "stop nursery": self._stop}
        if os.path.ismount(self._layout.nats):
            self.kinds |= {"fill nats": self._fill, "fill node": self._fill}

    def inject(self, kind: str) -> Injected:
        """Inject a fault of this kind. Raises NotNow."""
        return self.kinds[kind](kind)

    def _kill(self, kind: str) -> Injected:
        name, node, pids = self._victims(kind.removeprefix("kill "))
        # With one process of Postgres all of them end; only the first has to be killed.
        with _held(pids[:1]) as held:
            at = time.time()
            _signal(held, signal.SIGKILL)
        return Injected(kind, name, at, at, _nothing, frozenset({node} if kind == "kill vault" else ()))

    def _stop(self, kind: str) -> Injected:
        name, _, pids = self._victims(kind.removeprefix("stop "))
        held = [pidfd for pid in pids if (pidfd := _open(pid)) is not None]
        at = time.time()
        _signal(held, signal.SIGSTOP)

        def undo() -> None:
            _signal(held, signal.SIGCONT)
            for pidfd in held:
                os.close(pidfd)

        return Injected(kind, name, at, at + self._duration_s(), undo)

    def _jump(self, kind: str) -> Injected:
        name, _, pids = self._victims(kind.removeprefix("jump "))
        ahead_s = self._chance.randint(*JUMP_S)
        at = time.time()
        if not self._clocks.set_ahead(pids[0], ahead_s):
            raise NotNow(f"{name} has no clock of its own")

        def undo() -> None:
            self._clocks.set_ahead(pids[0], 0)

        target = f"{name} by {ahead_s} s".strip()
        return Injected(kind, target, at, at + self._duration_s(), undo)

    def _victims(self, process: str) -> tuple[str, str, list[int]]:
        """Return a name, the node, and the processes of one victim."""
        if process == "rank":
            rank = self._chance.randrange(len(self._training.pids))
            self._training.read()
            return f"rank {rank}", "", [_alive(self._training.pids[rank], f"rank {rank}")]
        node = self._a_node()
        if process == "nursery":
            return "", "", [_oldest("holdfast_agent.zygote.nursery", str(self._layout.root / "nursery.sock"))]
        if process in ("zygote", "vault"):
            module = {"zygote": "holdfast_agent.zygote", "vault": "holdfast_vault"}[process]
            return node, node, [_oldest(module, str(self._layout.node(node)))]
        name = node if process == "agent" else process
        record = self._running.info.children.get(name)
        pid = _alive(record.pid if record else 0, name)
        pids = [pid, *(machine.descendants(pid) if process == "postgres" else ())]
        return (node if process == "agent" else ""), node, pids

    def _a_node(self) -> str:
        """Return a node, more often than not one of the job."""
        if self._chance.random() < MEMBERS_SHARE:
            with contextlib.suppress(NotNow):
                return self._chance.choice(self._members())
        return self._chance.choice(self._running.info.nodes)

    def _lose_node(self, kind: str) -> Injected:
        node = self._chance.choice(self._members())
        at = time.time()
        ask(self._layout, PowerOff(node=node), within_s=CONTROL_S)

        def undo() -> None:
            ask(self._layout, PowerOn(node=node), within_s=CONTROL_S)

        return Injected(kind, node, at, at + self._duration_s(), undo, frozenset({node}))

    def _kill_supervisor(self, kind: str) -> Injected:
        pid = _alive(self._running.info.pid or 0, "the supervisor")
        at = self._supervisor_killed_at = time.time()
        os.kill(pid, signal.SIGKILL)

        def undo() -> None:
            try:
                self._running.holdfast("up", "--detach", *self._up, limit_s=UP_S)
            except LauncherFailed:
                # The second of a pair may kill what this begins to start; then the second starts it again.
                if self._supervisor_killed_at == at:
                    raise

        return Injected(kind, "", at, at + self._duration_s(), undo, frozenset(self._running.info.nodes))

    def _cut_bus(self, kind: str) -> Injected:
        fabric = self._running.info.fabric
        assert fabric is not None
        node = self._a_node()
        ends = ((fabric.namespace(node), DEVICE, fabric.gateway), ("", fabric.bridge, fabric.address(node)))
        return self._cut(kind, node, ends)

    def _cut_nodes(self, kind: str) -> Injected:
        fabric = self._running.info.fabric
        assert fabric is not None
        one, other = self._chance.sample(self._running.info.nodes, 2)
        ends = tuple((fabric.namespace(a), DEVICE, fabric.address(b)) for a, b in ((one, other), (other, one)))
        return self._cut(kind, f"{one} and {other}", ends)

    def _cut(self, kind: str, target: str, ends: Iterable[tuple[str, str, str]]) -> Injected:
        steps = [DropTraffic(namespace=where, device=device, address=address) for where, device, address in ends]
        return self._steps(kind, target, steps)

    def _pull_link(self, kind: str) -> Injected:
        fabric = self._running.info.fabric
        assert fabric is not None
        node = self._a_node()
        return self._steps(kind, node, [LinkDown(link=fabric.link(node))])

    def _steps(self, kind: str, target: str, steps: list[DropTraffic] | list[LinkDown]) -> Injected:
        at = time.time()
        for step in steps:
            step.do()

        def undo() -> None:
            for step in steps:
                step.undo()

        return Injected(kind, target, at, at + self._duration_s(), undo)

    def _fill(self, kind: str) -> Injected:
        directory = self._layout.nats if kind == "fill nats" else self._layout.node(disk_node(self._running))
        ballast = directory / "ballast"
        at = time.time()
        with open(ballast, "wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(bytes(1 << 20)):
                pass

        return Injected(kind, "", at, at + self._duration_s(), lambda: ballast.unlink(missing_ok=True))

    def _members(self) -> list[str]:
        """Return the nodes of the ranks that run now."""
        found = set()
        for pid in self._training.pids:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                environment = Path(f"/proc/{pid}/environ").read_bytes()
                found |= {it for it in self._running.info.nodes if os.fsencode(self._layout.node(it)) in environment}
        if not found:
            raise NotNow("no rank runs")
        return sorted(found)

    def _duration_s(self) -> float:
        return self._chance.uniform(*LASTS_S)


def disk_node(running: Cluster) -> str:
    """Return the node whose directory is a disk of its own."""
    return running.info.nodes[0]


@contextlib.contextmanager
def small_disks(directory: Path) -> Iterable[None]:
    """Put the directories of NATS and of the first node on file systems of their own, where this may be done."""
    libc = ctypes.CDLL(None, use_errno=True)
    mounted: list[Path] = []
    try:
        for path in (directory / "nats", directory / "nodes" / "node-0"):
            path.mkdir(mode=0o700, parents=True)
            options = f"mode=0700,size={DISK_BYTES}".encode()
            if libc.mount(b"chaos", os.fsencode(path), b"tmpfs", ctypes.c_ulong(0), options) == 0:
                mounted.append(path)
        # A directory with other files than a cluster's is refused.
        (directory / "lock").touch()
        yield
    finally:
        for path in mounted:
            libc.umount2(os.fsencode(path), 2)


def matching(kinds: Iterable[str], asked: str) -> list[str]:
    """Return the kinds that begin with one of the words asked for, separated by commas; all of them for ""."""
    wanted = [word.strip() for word in asked.split(",") if word.strip()]
    return [kind for kind in kinds if not wanted or any(kind == it or kind.startswith(it + " ") for it in wanted)]


def _alive(pid: int, name: str) -> int:
    if not pid or not Path(f"/proc/{pid}/exe").exists():
        raise NotNow(f"{name} does not run")
    return pid


def _oldest(*words: str) -> int:
    """Return the process with these words in its command line, not those that it forked. Raises NotNow."""
    wanted = {os.fsencode(word) for word in words}
    found = {}
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if wanted <= {*Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")}:
                found[pid] = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    for pid, parent in found.items():
        if parent not in found:
            return pid
    raise NotNow(f"no {words[0]} runs")


def _open(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None


@contextlib.contextmanager
def _held(pids: Iterable[int]) -> Iterable[list[int]]:
    held = [pidfd for pid in pids if (pidfd := _open(pid)) is not None]
    if not held:
        raise NotNow("the process has ended")
    try:
        yield held
    finally:
        for pidfd in held:
            os.close(pidfd)


def _signal(pidfds: Iterable[int], number: signal.Signals) -> None:
    for pidfd in pidfds:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, number)


def _nothing() -> None:
    """Undo a fault that has no duration."""
