"""Starting the workload: under torchrun, and on an embedded cluster of Holdfast."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import asyncpg
import machine
import msgspec

from holdfast.embedded.layout import ClusterInfo

WORKLOAD = Path(__file__).parent / "workload.py"
STOP_S = 30.0
COMMAND_S = 300.0
FOREVER = 100_000_000


class LauncherFailed(RuntimeError):
    """A launcher ended, or did not start."""


class Place(NamedTuple):
    """The directories of one run."""

    record: Path
    checkpoints: Path

    @classmethod
    def fresh(cls, root: Path, name: str) -> Place:
        place = cls(root / name / "record", root / name / "checkpoints")
        for directory in place:
            directory.mkdir(parents=True)
        return place

    def arguments(self, steps: int, *more: str) -> list[str]:
        return ["--steps", str(steps), "--record", str(self.record), "--ckpt-dir", str(self.checkpoints), *more]


@contextlib.contextmanager
def torchrun(
    world_size: int, place: Place, *more: str, steps: int = FOREVER, fair: bool = True, restarts: int = 3
) -> Iterator[subprocess.Popen[bytes]]:
    """The workload under torchrun; its processes are ended with the block.

    `fair`: with the variable that keeps torchrun from sharing its store with the ranks, without which recoveries over
    gloo fail often (see docs/benchmarks.md).
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    environment |= {"OMP_NUM_THREADS": "1"}
    environment.pop("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", None)
    if fair:
        environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    with (place.record / "torchrun.log").open("ab") as log:
        process = subprocess.Popen(
            (
                *(sys.executable, "-m", "torch.distributed.run", "--nnodes", "1", "--nproc-per-node", str(world_size)),
                *("--max-restarts", str(restarts), "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"),
                *("--rdzv-id", uuid.uuid4().hex, str(WORKLOAD), *place.arguments(steps, *more)),
            ),
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        # Its agent forwards SIGTERM; but a run that failed to recover may hang, with ranks in sessions of their own.
        ranks = machine.descendants(process.pid)
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pid in ranks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


class Cluster:
    """An embedded cluster for one benchmark."""

    def __init__(self, directory: Path, nodes: int) -> None:
        self.directory = directory
        self.nodes = nodes
        # A bench breaks the same few nodes over and over: their record would have them checked instead.
        self.environment = {"HOLDFAST_MECHANISMS_RECORD": "observe"}
        """Variables of all commands besides those of this process."""
        # One connection for all queries: a new one each time would have Postgres fork while something is measured.
        self._reader = asyncio.Runner()
        self._connection: asyncpg.Connection | None = None

    @property
    def info(self) -> ClusterInfo:
        return ClusterInfo.load(self.directory)

    def holdfast(self, *arguments: str, limit_s: float = COMMAND_S) -> str:
        """Run a command of the command line.

        Raises:
            LauncherFailed: it did not end well, or not in time.
        """
        command = (sys.executable, "-m", "holdfast.cli", *arguments)
        try:
            done = subprocess.run(
                command,
                env=os.environ | self.environment | {"HOLDFAST_DIR": str(self.directory)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
                timeout=limit_s,
            )
        except subprocess.TimeoutExpired as error:
            raise LauncherFailed(f"holdfast {' '.join(arguments)} did not end within {limit_s:g} s") from error
        if done.returncode:
            raise LauncherFailed(f"holdfast {' '.join(arguments)} ended with {done.returncode}: {done.stdout[-2000:]}")
        return done.stdout

    def submit(self, job: str, place: Place, nnodes: int, nproc: int, *more: str, steps: int = FOREVER) -> None:
        """Submit the workload."""
        shape = ("--nnodes", str(nnodes), "--nproc-per-node", str(nproc))
        self.holdfast("run", "-d", "--name", job, *shape, str(WORKLOAD), *place.arguments(steps, *more))

    def stop(self, job: str) -> None:
        """Stop a job and wait until it is over."""
        self.holdfast("stop", job)
        self.await_event(job, "job_finished", STOP_S)

    def query(self, text: str, *values: object) -> list[dict[str, Any]]:
        """Rows of the record."""
        return self._reader.run(self._fetch(text, *values))

    async def _fetch(self, text: str, *values: object) -> list[dict[str, Any]]:
        if self._connection is None:
            self._connection = await asyncpg.connect(self.info.database_urls["reader"])
        return [dict(row) for row in await self._connection.fetch(text, *values)]

    def close(self) -> None:
        """Let go of the database."""
        if self._connection is not None:
            self._connection.terminate()
        self._reader.close()

    def events(self, job: str, *types: str) -> list[dict[str, Any]]:
        """The recorded events of these types, oldest first; each is its body, its times read."""
        rows = self.query(
            "select at, body::text as body from historian.events where job = $1 and type = any($2) order by at, id",
            job,
            list(types),
        )
        return [msgspec.json.decode(row["body"]) | {"at": row["at"]} for row in rows]

    def await_event(self, job: str, kind: str, limit_s: float, count: int = 1) -> list[dict[str, Any]]:
        """Wait until so many events of this type are recorded.

        Raises:
            LauncherFailed: they are not within `limit_s`.
        """
        until = time.monotonic() + limit_s
        while time.monotonic() < until:
            found = self.events(job, kind)
            if len(found) >= count:
                return found
            time.sleep(0.2)
        raise LauncherFailed(f"job {job}: no {count} events {kind} within {limit_s:g} s")

    def pids(self) -> dict[str, int]:
        """The processes of the cluster by name; zygotes as `zygote-NODE`."""
        info = self.info
        found = {name: child.pid for name, child in info.children.items()}
        for node in info.nodes:
            found[f"zygote-{node}"] = int((self.node_directory(node) / "zygote.pid").read_text())
        return found

    def node_directory(self, node: str) -> Path:
        """As the node's own processes spell it."""
        return self.directory.resolve() / "nodes" / node


@contextlib.contextmanager
def cluster(nodes: int, *options: str, **environment: str) -> Iterator[tuple[Cluster, Path]]:
    """A fresh cluster in a temporary directory, and that directory; both are gone after the block.

    On an error the directory stays, for its logs. `options` are those of `holdfast up`.
    """
    root = Path(tempfile.mkdtemp(prefix="holdfast-bench-"))
    started = Cluster(root / "cluster", nodes)
    started.environment |= environment
    try:
        started.holdfast("up", "--detach", "--nodes", str(nodes), *options)
        yield started, root
    except BaseException:
        print(f"logs are kept in {root}", file=sys.stderr)
        started.holdfast("down")
        raise
    finally:
        started.close()
    started.holdfast("down")
    shutil.rmtree(root)


def seconds(moment: datetime | str) -> float:
    """A time as seconds since the epoch."""
    return (datetime.fromisoformat(moment) if isinstance(moment, str) else moment).timestamp()
