"""An embedded cluster, used as a person uses it: `holdfast up`, `run`, `status`, `down`, and real signals."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from job import HOLDFAST, Job
from reader import Reader
from waiting import DEADLINE_S, until

from holdfast.daemon.nursery import NURSERY_VARIABLE
from holdfast.embedded.control import AddNode, AnyRequest, ChildStatus, PowerOff, PowerOn, Reply, Status, ask
from holdfast.embedded.layout import ClusterInfo, ClusterLayout
from holdfast.embedded.processes.proctree import kill_all, node_processes
from holdfast.node.kernel import started_ticks
from tests.nursery import public_environment, worker_nursery
from tests.warm_python import WarmHoldfast, run_warm

JOBS = Path(__file__).with_name("jobs")
COMMAND_LIMIT_S = 90.0
UP_LIMIT_S = 200.0
"""Every node of it imports torch."""
LOG_LINES_SHOWN = 4
RANK = re.compile(r"rank-\d")

T = TypeVar("T")


class Cluster:
    """One cluster in one directory."""

    def __init__(
        self,
        directory: Path,
        environment: dict[str, str] | None = None,
        prefix: Sequence[str] = (),
        *,
        has_own_nursery: bool = False,
    ) -> None:
        """`prefix`: a command that runs `holdfast up` (`tests/open_python.py`), as another user than the nursery."""
        self.directory = directory
        self._prefix = prefix
        self.layout = ClusterLayout(directory)
        self.jobs: list[Job] = []
        clean = {key: value for key, value in public_environment().items() if not key.startswith("HOLDFAST_")}
        self._reader = Reader()
        # The kernel's log is the machine's: what one test writes into it, the agents of all others would read as well.
        own = {"PYTHONUNBUFFERED": "1", "HOLDFAST_INSPECTIONS_DISABLED": "kernel"}
        # Jobs that wait at a gate of a test do not hang.
        own["HOLDFAST_HANG_UNNAMED_S"] = "600"
        # Rounds of stacks ten seconds apart would be most of what their test takes.
        own["HOLDFAST_SLOW_VOTE_EVERY_S"] = "1"
        # Ranks that ignore SIGTERM would be waited for three times as long.
        own["HOLDFAST_TIMEOUTS_STOP_GRACE_S"] = "10"
        # Many tests break the same few nodes: what one did must not decide what happens in another.
        own["HOLDFAST_MECHANISMS_RECORD"] = "observe"
        if not (has_own_nursery or prefix):
            own[NURSERY_VARIABLE] = str(worker_nursery())
        self._environment = clean | own | (environment or {})

    # --- commands -------------------------------------------------------------------------------

    def command(
        self, *arguments: str | Path, check: bool = True, limit_s: float = COMMAND_LIMIT_S
    ) -> subprocess.CompletedProcess[str]:
        """Run `holdfast ARGUMENTS` on this cluster."""
        name, *rest = map(str, arguments)
        nested = (
            [rest.pop(0)] if name in ("nodes", "ckpt", "credentials") and rest and not rest[0].startswith("-") else []
        )
        words = [HOLDFAST, name, *nested, "--dir", str(self.directory), *rest]
        root, given = Path("/"), self._environment
        if name == "up":
            # What runs on is started as by a person.
            done = subprocess.run(
                [*self._prefix, *words],
                capture_output=True,
                text=True,
                check=False,
                timeout=limit_s,
                env=given,
                cwd=root,
            )
        else:
            done = run_warm(
                [sys.executable, *words], cwd=root, env=given, timeout=limit_s, check=False, start=WarmHoldfast
            )
        assert not check or done.returncode == 0, (
            f"holdfast {' '.join(map(str, arguments))}\n{done.stdout}{done.stderr}"
        )
        return done

    def up(self, nodes: int | None = None, *, namespaces: bool = False) -> None:
        """`holdfast up -d`: returns when everything is ready, and may be broken by `holdfast inject`."""
        wanted = [] if nodes is None else ["--nodes", str(nodes)]
        wanted += ["--namespaces"] if namespaces else []
        self.command("up", "-d", "--allow-faults", *wanted, limit_s=UP_LIMIT_S)

    def down(self, *arguments: str) -> None:
        """`holdfast down`."""
        self.command("down", *arguments)

    def run(
        self,
        *arguments: str | Path,
        script: Path = JOBS / "fold.py",
        nnodes: int = 2,
        nproc: int = 2,
        name: str | None = None,
        options: Sequence[str] = (),
        environment: dict[str, str] | None = None,
        is_executed: bool = False,
    ) -> Job:
        """`holdfast run` in the background; `environment`: variables of the command besides the cluster's."""
        name = name or f"job-{len(self.jobs)}"
        job = Job(
            ["run", "--dir", str(self.directory)],
            # Of our own jobs the version has no more than them: the repository around them changes while tests run.
            # A model of the examples is found from where the job lies.
            [
                *(["--code", "none" if "gpt" in script.name else str(JOBS)] if script.parent == JOBS else []),
                *map(str, options),
            ],
            script,
            [*map(str, arguments)],
            scratch=self.directory / "scratch" / name,
            shape=(nnodes, nproc),
            name=name,
            environment=self._environment | (environment or {}),
            look=self.look,
            is_executed=is_executed,
        )
        self.jobs.append(job)
        return job

    # --- what is ---------------------------------------------------------------------------------

    @property
    def info(self) -> ClusterInfo:
        return ClusterInfo.load(self.directory)

    def status(self) -> dict[str, Any]:
        """`holdfast status --json`."""
        data: dict[str, Any] = json.loads(self.command("status", "--json", check=False).stdout)
        return data

    def children(self) -> dict[str, ChildStatus]:
        """The supervised processes by name, as `holdfast status` shows them."""
        return {child.name: child for child in self.ask(Status()).children}

    def query(self, sql: str, *arguments: object) -> list[dict[str, Any]]:
        """Rows, asked as the reading role. Raises NotYet while the database is away."""
        return self._reader.rows(self.info.database_urls["reader"], sql, arguments)

    def events(self, job: Job, kind: str) -> list[dict[str, Any]]:
        """The bodies of a job's recorded events of one type, in order."""
        rows = self.query(
            "select body from historian.events where job = $1 and type = $2 order by at, id", job.name, kind
        )
        return [json.loads(row["body"]) for row in rows]

    def incidents(self, job: Job) -> list[dict[str, Any]]:
        """The job's incidents, by the truth."""
        return self.query("select * from controller.incidents where job = $1 order by opened_at", job.name)

    def nodes(self) -> dict[str, dict[str, Any]]:
        """The inventory by node."""
        return {row["key"]: row for row in self.query("select * from standby.nodes")}

    def members(self, job: Job) -> list[str]:
        """The nodes of the job's newest generation, by node rank."""
        started = until("a generation is recorded", lambda: self.events(job, "generation_started"), look=self.look)
        nodes: list[str] = started[-1]["nodes"]
        return nodes

    def look(self) -> str:
        """The scene, for a failure's message."""
        parts = [self.command("status", check=False).stdout]
        for name in ("incidents", "jobs", "nodes"):
            with contextlib.suppress(subprocess.SubprocessError):
                parts.append(self.command(name, check=False).stdout)
        for log in sorted(self.layout.logs.glob("*.log")):
            lines = [line for line in log.read_text(errors="replace").splitlines() if "ERROR" in line or "rror" in line]
            parts += [f"--- {log.name}", *(line[:200] for line in lines[-LOG_LINES_SHOWN:])]
        parts += [f"--- {job.name}\n{job.output()[-1500:]}\n{job.errors()[-1500:]}" for job in self.jobs[-2:]]
        parts += [_stacks(pid) for pid in self._ranks()]
        return "\n".join(parts)

    def _ranks(self) -> list[int]:
        """Ranks that run on any node."""
        started = set[int]().union(*(node_processes(self.layout.node(node), None) for node in self.info.nodes))
        return [pid for pid in sorted(started) if RANK.match(_name(pid))]

    def until(self, what: str, condition: Callable[[], T], within_s: float = DEADLINE_S) -> T:
        """Wait for a condition; a failure shows the cluster."""
        return until(what, condition, within_s=within_s, look=self.look)

    # --- what is done to it ----------------------------------------------------------------------

    def pid(self, child: str) -> int:
        """The process of a child that runs."""
        return int(self.info.children[child].pid)

    def kill(self, child: str) -> int:
        """`kill -9` of one child; returns its pid."""
        pid = self.pid(child)
        os.kill(pid, signal.SIGKILL)
        return pid

    def freeze_nats(self) -> int:
        """Stop it for less time than its clients wait for it; it writes nothing more. Return its pid."""
        pid = self.pid("nats")
        os.kill(pid, signal.SIGSTOP)
        tasks = Path(f"/proc/{pid}/task")
        self.until("every thread of nats is stopped", lambda: all(_is_stopped(task) for task in tasks.iterdir()))
        return pid

    def until_mended(self, child: str, killed: int) -> None:
        """Wait until the supervisor has started a killed child again, and it is ready."""

        def mended() -> bool:
            now = self.children()[child]
            return now.pid != killed and now.state == "ready"

        self.until(f"{child} runs again", mended)

    def ask(self, request: AnyRequest) -> Reply:
        """Ask the supervisor."""
        return ask(self.layout, request)

    def power_off(self, node: str) -> None:
        """Lose a node whole."""
        reply = self.ask(PowerOff(node=node))
        assert reply.killed

    def lose_power(self) -> None:
        """Kill everything at one stroke: supervisor, servers, services, agents, ranks."""
        info = self.info

        def everything() -> set[int]:
            return set().union(*(node_processes(self.layout.node(node), info.pid) for node in info.nodes))

        kill_all(everything)
        assert not [child.pid for child in info.children.values() if alive(child.pid)]

    def power_on(self, node: str) -> None:
        """Bring it back."""
        self.ask(PowerOn(node=node))

    def add_node(self) -> str:
        """One more node; returns its name."""
        reply = self.ask(AddNode())
        assert reply.node
        return reply.node

    def close(self) -> None:
        """Ask it nothing more."""
        self._reader.close()

    def make_whole(self) -> None:
        """Everything runs and every node is free: what a test may start from."""
        for name, child in self.children().items():
            if child.state == "off":
                self.power_on(name)
        self.until("all children are ready", lambda: all(child.state == "ready" for child in self.children().values()))
        for job in self.jobs:
            job.leave()
        for name, node in self.nodes().items():
            if node["blocked_until"] is not None:
                self.command("nodes", "release", name)
        self.until("all nodes are free", self._stop_what_runs)

    def _stop_what_runs(self) -> bool:
        # A submission that was under way when its command left may become a job at any time until its answer.
        for row in self.query("select key from controller.jobs where exit_code is null"):
            self.command("stop", row["key"], check=False)
        return {node["state"] for node in self.nodes().values()} == {"standby"}


@contextlib.contextmanager
def cluster(
    directory: Path,
    nodes: int,
    environment: dict[str, str] | None = None,
    *,
    namespaces: bool = False,
    prefix: Sequence[str] = (),
    has_own_nursery: bool = False,
    before: Callable[[Cluster], object] = lambda made: None,
) -> Iterator[Cluster]:
    """A cluster that is up; whatever happens, nothing of it stays behind. `before`: what is done before it is up."""
    made = Cluster(directory, environment, prefix, has_own_nursery=has_own_nursery)
    try:
        before(made)
        made.up(nodes, namespaces=namespaces)
        yield made
    finally:
        for job in made.jobs:
            job.leave()
        made.close()
        if made.layout.cluster_file.exists():
            made.down("--force")


def alive(pid: int) -> bool:
    """Whether a process of this id runs, as anything but a zombie."""
    return started_ticks(pid) is not None


def _is_stopped(task: Path) -> bool:
    return (task / "stat").read_text().rpartition(")")[2].split()[0] == "T"


def _name(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text()
    return ""


def _stacks(pid: int) -> str:
    """The stacks of a rank that does not end, with what it does in C++: it may hold the interpreter's lock there."""
    words = [str(Path(sys.executable).with_name("py-spy")), "dump", "--native", "--pid", str(pid)]
    with contextlib.suppress(subprocess.SubprocessError):
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=COMMAND_LIMIT_S)
        return f"--- stacks of {pid}\n{done.stdout[-6000:]}{done.stderr[-500:]}"
    return f"--- no stacks of {pid}"
