"""The opponents of an undisturbed torchrun, Holdfast or torchrun itself, and the processes of each."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

import machine
from launchers import Cluster, Place, cluster, torchrun
from turns import Find, stopped

from holdfast.embedded.processes.proctree import node_processes

NODE = "node-0"
SERVERS = ("supervisor", "controller", "standby", "analyzer", "ckpt", "historian", "nats")


class Opponent(Protocol):
    """The opponent of torchrun."""

    name: str

    def job(
        self, name: str, place: Place, world_size: int, shape: tuple[str, ...]
    ) -> contextlib.AbstractContextManager[Mapping[str, Find]]:
        """Run the workload within the block. What is to stand still in torchrun's slices, by mode."""
        ...

    def cpu_s(self) -> dict[str, float]:
        """Return the processor seconds that its processes beside the ranks have used so far."""
        ...


class Holdfast:
    """A job on an embedded cluster of one node."""

    name = "holdfast"

    def __init__(self, running: Cluster) -> None:
        self._running = running

    @contextlib.contextmanager
    def job(self, name: str, place: Place, world_size: int, shape: tuple[str, ...]) -> Iterator[Mapping[str, Find]]:
        self._running.submit(name, place, 1, world_size, *shape)
        try:
            yield {"node": self._node, "all": self._all}
        finally:
            self._running.stop(name)

    @contextlib.contextmanager
    def bare(self, switch: Path) -> Iterator[None]:
        """The ranks go on without Holdfast: they do not call its library, and nothing else of it runs on their node."""
        switch.write_bytes(b"1")
        try:
            with stopped(self._beside_ranks):
                yield
        finally:
            switch.write_bytes(b"0")

    def cpu_s(self) -> dict[str, float]:
        pids = self._running.pids() | {"supervisor": self._supervisor()}
        agent, zygote, postgres = pids[NODE], pids[f"zygote-{NODE}"], pids["postgres"]
        vault = [pid for pid in machine.children(agent) if pid != zygote]
        return {
            "agent": machine.cpu_s(agent),
            "zygote": machine.cpu_s(zygote),
            "vault": sum(map(machine.cpu_s, vault)),
            **{name: machine.cpu_s(pids[name]) for name in SERVERS},
            "postgres": sum(map(machine.cpu_s, [postgres, *machine.children(postgres)])),
        }

    def _supervisor(self) -> int:
        pid = self._running.info.pid
        assert pid is not None
        return pid

    def _node(self) -> set[int]:
        return node_processes(self._running.node_directory(NODE), self._running.info.children[NODE].pid)

    def _beside_ranks(self) -> set[int]:
        pids = self._running.pids()
        return {pids[NODE], pids[f"zygote-{NODE}"], *machine.children(pids[NODE])}

    def _all(self) -> set[int]:
        return {self._supervisor(), *machine.descendants(self._supervisor()), *self._node()}


class TorchrunAgain:
    """Another torchrun: whatever is found to differ here is the method's own error."""

    name = "torchrun again"

    @contextlib.contextmanager
    def job(self, name: str, place: Place, world_size: int, shape: tuple[str, ...]) -> Iterator[Mapping[str, Find]]:
        with torchrun_job(place, world_size, shape) as processes:
            yield {"null": processes}

    def cpu_s(self) -> dict[str, float]:
        return {}


@contextlib.contextmanager
def torchrun_job(place: Place, world_size: int, shape: tuple[str, ...]) -> Iterator[Find]:
    """Run the workload under torchrun within the block; its processes."""
    with torchrun(world_size, place, *shape, restarts=0) as process:
        yield lambda: {process.pid, *machine.descendants(process.pid)}


@contextlib.contextmanager
def opponent(null: bool) -> Iterator[tuple[Opponent, Path]]:
    """Yield the opponent, and a directory for its runs."""
    if null:
        with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as root:
            yield TorchrunAgain(), Path(root)
    else:
        with cluster(1) as (running, directory):
            yield Holdfast(running), directory
