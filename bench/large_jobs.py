"""Costs to the controller of events of a job of thousands of nodes: planning, and what is written to Postgres.

    python bench/large_jobs.py                  1,200 and 10,000 nodes
    python bench/large_jobs.py --quick          100 and 400 nodes
    python bench/large_jobs.py --stored 20      store 20 events of each kind only, for a tree where each costs much

A job starts on all nodes, trains, fails twice, and stop-time checks of all nodes follow; the results of each node come
apart as they did before agents collected them, and together as they do now. *Planning* is the CPU time of the decision
and of adopting it. *Storing* is the CPU time of this process for the transaction, and *written* what the server's log
(WAL) grew by. The server's own CPU time is not in either.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import asyncpg
import machine
import msgspec
from report import final_line, rounded, table, tell

from holdfast.daemon.logs import log_to_stderr
from holdfast.effects import Effect
from holdfast.embedded.processes.child_process import start
from holdfast.embedded.servers.identity import choose_identity
from holdfast.embedded.servers.ports import reserve_ports
from holdfast.embedded.servers.postgres import admin_url, ensure_database, initialise, postgres_spec, programs
from holdfast.engines.checks.suites import END, stages
from holdfast.events import (
    DiagnosticResult,
    Event,
    FirstStep,
    Inspection,
    NodesAwaited,
    NodesGranted,
    ProcessExited,
    Progress,
    RanksStarted,
)
from holdfast.events.parts.job import Grant, JobSpec
from holdfast.events.parts.ranks import FoldedResult, RankProgress
from holdfast.ids import named_id
from holdfast.requests import SubmitJob
from holdfast.store.postgres import PostgresStore
from holdfast.store.upgrade.migrate import migrate
from holdfast_controller.plan.draft import Rules
from holdfast_controller.plan.phase import Checking, Claiming, Running
from holdfast_controller.service import Controller
from holdfast_controller.store import TABLES

PASSWORD = "for-this-benchmark"
ROLE = "holdfast_controller"
START_S = 60.0
SUITE = "full"
ORDINARY = 1_000
"""Events of each kind that a job has all the time."""


class Servers(NamedTuple):
    """Addresses of the database for the controller and for its administrator."""

    database: str
    admin: str


class Cost(NamedTuple):
    """Cost of events of one kind."""

    events: int
    planning_s: float
    stored: int
    storing_s: float
    written_bytes: int

    def row(self) -> dict[str, Any]:
        return {
            "events": self.events,
            "planning_s": rounded(self.planning_s, 3),
            "planning_us_each": rounded(self.planning_s / self.events * 1e6, 1),
            "storing_ms_each": rounded(self.storing_s / self.stored * 1e3, 3) if self.stored else None,
            "written_kb_each": rounded(self.written_bytes / self.stored / 1e3, 2) if self.stored else None,
        }


class Scene:
    """A job of `nodes` nodes, its controller, and the store that its effects go to."""

    def __init__(self, nodes: int, store: PostgresStore, wal: asyncpg.Connection, stored_max: int | None) -> None:
        self.names = [f"node-{number:05}" for number in range(nodes)]
        self.controller = Controller(Rules())
        self.controller.load({table.name: {} for table in TABLES})
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self._store, self._wal, self.stored_max = store, wal, stored_max
        self._ids = (named_id(self.now, nodes, number) for number in count())

    @property
    def state(self) -> Any:
        return self.controller.jobs["job"]

    async def submit(self) -> None:
        spec = JobSpec(name="job", script="train.py", cwd="/", directory="/jobs/job", nnodes=len(self.names))
        await self._commit(self.controller.on_request(SubmitJob(id=next(self._ids), asked_by="x", spec=spec), self.now))

    async def cost(self, events: Iterable[Event]) -> Cost:
        """Handle the events; store all of them, or blocks of them spread over the whole."""
        given = list(events)
        block = len(given) if self.stored_max is None else 5
        blocks = 1 if self.stored_max is None else max(1, self.stored_max // block)
        measured = {first + n for first in range(0, len(given), max(1, len(given) // blocks)) for n in range(block)}
        planning_s = storing_s = 0.0
        stored = written = 0
        for number, event in enumerate(given):
            self.now += timedelta(milliseconds=1)
            began = time.process_time()
            effect = self.controller.on_event(event, self.now)  # type: ignore[arg-type]
            planned = time.process_time()
            if number in measured and not effect.is_nothing:
                before = await self._log_position()
                storing = time.process_time()
                await self._store_rows(effect)
                storing_s += time.process_time() - storing
                written += await self._log_position() - before
                stored += 1
            elif number + 1 in measured:
                await self._store_rows(effect)
            adopting = time.process_time()
            self.controller.adopt(effect)
            planning_s += planned - began + time.process_time() - adopting
        return Cost(len(given), planning_s, stored, storing_s, written)

    def of_each(self, kind: type[Event], names: Iterable[str], **fields: Any) -> Iterator[Any]:
        return (self.event(kind, node, **fields) for node in names)

    def event(self, kind: type[Event], node: str | None, **fields: Any) -> Any:
        common = {"job": "job", "generation": self.state.generation, "source": f"agent/{node}"}
        return kind(id=next(self._ids), at=self.now, node=node, **{**common, **fields})

    async def _log_position(self) -> int:
        return int(await self._wal.fetchval("select pg_current_wal_insert_lsn() - '0/0'::pg_lsn"))

    async def _commit(self, effect: Effect) -> None:
        await self._store_rows(effect)
        self.controller.adopt(effect)

    async def _store_rows(self, effect: Effect) -> None:
        async with self._store.transaction() as tx:
            for row in effect.rows:
                if row.row is None:
                    await tx.delete(row.table, row.key)
                else:
                    await tx.save(row.table, row.key, row.row)


async def measure(nodes: int, at: Servers, stored_max: int | None) -> dict[str, Cost]:
    """Return the cost of each kind of event, from the start of a job to the end of its checks."""
    async with scene_of(nodes, at, stored_max) as scene:
        costs = await trained(scene)
        costs["diagnostic_result, one by one"] = await checked(scene, together=False)
    async with scene_of(nodes, at, 0) as scene:
        await trained(scene)
        scene.stored_max = stored_max
        costs["diagnostic_result, one per node"] = await checked(scene, together=True)
    return costs


async def trained(scene: Scene) -> dict[str, Cost]:
    """Let the job start, train and crash twice, so that checks follow."""
    await scene.submit()
    names, costs = scene.names, {}
    assert isinstance(scene.state.phase, Claiming)
    grants = tuple(
        Grant(node=node, epoch=1, address=f"10.0.{n // 250}.{n % 250}", store_ports=(29500,), vault_port=29600)
        for n, node in enumerate(names)
    )
    costs["nodes_granted"] = await scene.cost([scene.event(NodesGranted, None, claim=scene.state.claim, grants=grants)])
    costs["ranks_started"] = await scene.cost(scene.of_each(RanksStarted, names, ranks=(), took_s=1.0))
    costs["first_step"] = await scene.cost(scene.of_each(FirstStep, names, step=0, completed_at=scene.now))
    assert isinstance(scene.state.phase, Running)
    ordinary = [names[1 + number % (len(names) - 1)] for number in range(ORDINARY)]
    costs["progress, an incident open"] = await scene.cost(await crashed_once(scene, ordinary))
    alert = {"check": "link", "state": "alert", "confidence": "tolerate", "symptom": "infiniband_error"}
    costs["inspection"] = await scene.cost(
        scene.event(Inspection, node, **alert, device=f"mlx5_{n}", lines=("link down",), is_momentary=True)
        for n, node in enumerate(ordinary)
    )
    costs["process_exited"] = await scene.cost([crash(scene)])
    if (asked := scene.state.replacement) is not None:
        # No other node is free, so the node that crashed twice is tested with all.
        awaited = {"claim": asked.claim, "wanted": 1, "available": 0}
        await scene.cost([scene.event(NodesAwaited, None, **awaited)])
    return costs


async def checked(scene: Scene, *, together: bool) -> Cost:
    assert isinstance(scene.state.phase, Checking), scene.state.phase_name
    cost = await scene.cost(results(scene, together=together))
    assert not isinstance(scene.state.phase, Checking), scene.state.phase_name
    return cost


async def crashed_once(scene: Scene, names: list[str]) -> list[Any]:
    """Let the job crash and start again; return the progress that follows, by which its incident is not yet over."""
    await scene.cost([crash(scene)])
    await scene.cost(scene.of_each(RanksStarted, scene.names, ranks=(), took_s=1.0))
    await scene.cost(scene.of_each(FirstStep, scene.names, step=0, completed_at=scene.now))
    steps = (RankProgress(rank=0, step=1 + number, phase="forward") for number in range(len(names)))
    return [scene.event(Progress, node, ranks=(step,)) for node, step in zip(names, steps, strict=True)]


def crash(scene: Scene) -> Any:
    node = scene.names[0]
    return scene.event(ProcessExited, node, rank=0, local_rank=0, pid=1, signal=6, exited_at=scene.now, step=9999)


def results(scene: Scene, *, together: bool) -> Iterator[Any]:
    """Return what the nodes report: test after test, all nodes at the same one, or all of a node with its end."""
    planned = stages(SUITE, len(scene.names))
    partners = [dict(pair for one, other in stage.pairs for pair in ((one, other), (other, one))) for stage in planned]
    found: dict[str, list[FoldedResult]] = {node: [] for node in scene.names}
    for number, (stage, partner) in enumerate(zip(planned, partners, strict=True), start=1):
        for rank, node in enumerate(scene.names):
            passed = FoldedResult(
                test=stage.test,
                peers=(scene.names[partner[rank]],) if rank in partner else (),
                round=stage.round,
                value=812.4,
                unit="GB/s",
                digest="b2d41c0ffee0" if "alignment" in stage.test else "",
                hardware="NVIDIA H100 80GB HBM3",
                took_s=3.2,
                done=number,
            )
            if together:
                found[node].append(passed)
            else:
                yield scene.event(DiagnosticResult, node, run="job/1", **msgspec.structs.asdict(passed))
    for node, own in found.items():
        published = 0 if together else len(planned)
        end = {"run": "job/1", "test": END, "status": "passed", "results": published, "folded": tuple(own)}
        yield scene.event(DiagnosticResult, node, **end)


@contextlib.contextmanager
def postgres(root: Path) -> Iterator[Servers]:
    """A server as the embedded cluster runs it, ready on entry and gone on exit."""
    identity = choose_identity(programs() / "postgres", root)
    asyncio.run(initialise(root, password=PASSWORD, identity=identity, log=root / "initdb.log"))
    with reserve_ports({}, None) as ports:
        spec = postgres_spec(root, port=ports.postgres, password=PASSWORD, identity=identity)
        assert spec.probe is not None
        with (spec.directory / "output.log").open("ab") as log:
            process = start(spec.argv, spec.environment, spec.directory, log.fileno(), signal.SIGKILL, spec.identity)
        try:
            asyncio.run(asyncio.wait_for(spec.probe(), START_S))
            asyncio.run(ensure_database(ports.postgres, PASSWORD))
            admin = admin_url(ports.postgres, PASSWORD)
            migrate(admin, {ROLE: PASSWORD})
            yield Servers(admin.replace("//postgres:", f"//{ROLE}:"), admin)
        finally:
            process.send_signal(spec.stop_signal)
            process.wait()


@contextlib.asynccontextmanager
async def scene_of(nodes: int, at: Servers, stored_max: int | None) -> AsyncIterator[Scene]:
    wal = await asyncpg.connect(at.admin)
    await wal.execute("truncate controller.jobs, controller.job_changes, controller.incidents")
    store = await PostgresStore.connect(at.database, "controller", application_name="bench")
    try:
        async with store.transaction() as tx:
            for known in TABLES:
                await tx.load_all(known)
        yield Scene(nodes, store, wal, stored_max)
    finally:
        await store.close()
        await wal.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="100 and 400 nodes")
    parser.add_argument("--nodes", type=int, action="append", help="number of nodes; may be given several times")
    parser.add_argument("--stored", type=int, help="store at most so many events of each kind")
    given = parser.parse_args()
    sizes = given.nodes or ([100, 400] if given.quick else [1_200, 10_000])
    log_to_stderr("bench")
    here, load_before = machine.describe(), machine.load()

    figures: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as root, postgres(Path(root)) as at:
        for nodes in sizes:
            costs = asyncio.run(measure(nodes, at, given.stored))
            figures[f"{nodes} nodes"] = {name: cost.row() for name, cost in costs.items()}
            tell(
                f"{nodes} nodes: {costs['diagnostic_result, one by one'].planning_s:.1f} s of planning for the results"
            )

    print(f"\n{machine.in_words(here)}; load {load_before} before\n")
    head = ("nodes", "event", "events", "planning s", "µs each", "storing ms each", "written kB each")
    rows = [(size, name, *row.values()) for size, kinds in figures.items() for name, row in kinds.items()]
    table(head, rows)
    print()
    final_line({"bench": "large_jobs", "machine": here, "load": load_before, "figures": figures})


if __name__ == "__main__":
    main()
