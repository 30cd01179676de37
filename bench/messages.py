"""The way of a message: bus delivery, outbox to receiver, and one handled event in Postgres, one at a time.

    python bench/messages.py            2,000 of each
    python bench/messages.py --quick    200 of each

A nats-server and a Postgres as the embedded cluster runs them, the disk waited for at each commit, nothing beside them.
*Delivery*: from publishing an event of 500 bytes until another connection's consumer has it. *Relay*: from waking the
relay after a commit until the receiver has what was said. *Handled event*: a service's transaction, with its inbox, one
row, three messages and the commit.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import machine
import msgspec
from report import final_line, percentile, rounded, table, tell

from holdfast.bus import Message
from holdfast.bus.accounts import OPERATOR, users
from holdfast.bus.nats import connect
from holdfast.daemon.logs import log_to_stderr
from holdfast.daemon.relay import Relay
from holdfast.embedded.processes.child_process import start
from holdfast.embedded.processes.children import ChildSpec
from holdfast.embedded.servers.credentials import HOST
from holdfast.embedded.servers.identity import choose_identity
from holdfast.embedded.servers.nats import nats_spec
from holdfast.embedded.servers.ports import reserve_ports
from holdfast.embedded.servers.postgres import admin_url, ensure_database, initialise, postgres_spec, programs
from holdfast.fresh_ids import uuid7
from holdfast.store import Table
from holdfast.store.postgres import PostgresStore
from holdfast.store.upgrade.migrate import migrate

PASSWORD = "for-this-benchmark"
BUS = dict.fromkeys(users(()), PASSWORD)
ROLE = "holdfast_controller"
START_S = 60.0
WARM_UP = 20
EVIDENCE = "holdfast.v1.evidence.process_exited.job.node-0"
DECISION = "holdfast.v1.decision.eviction.job.node-0"


class Servers(NamedTuple):
    """Addresses of the servers."""

    nats: str
    postgres: str


class JobRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of about the size of a job's state."""

    phase: str
    generation: int
    notes: str = "x" * 500


JOBS = Table(
    name="jobs",
    row_type=JobRow,
    columns=lambda job: {
        "phase": job.phase,
        "generation": job.generation,
        "incident": None,
        "exit_code": None,
        "submitted_at": datetime(2026, 1, 1, tzinfo=UTC),
    },
)


@contextlib.contextmanager
def running(spec: ChildSpec) -> Iterator[None]:
    """One of the embedded cluster's servers, ready on entry and gone on exit."""
    assert spec.probe is not None
    with (spec.directory / "output.log").open("ab") as log:
        process = start(spec.argv, spec.environment, spec.directory, log.fileno(), signal.SIGKILL, spec.identity)
    try:
        asyncio.run(asyncio.wait_for(spec.probe(), START_S))
        yield
    finally:
        process.send_signal(spec.stop_signal)
        process.wait()


@contextlib.contextmanager
def servers(root: Path) -> Iterator[Servers]:
    for name in ("nats", "postgres"):
        (root / name).mkdir()
    files = root / "postgres"
    identity = choose_identity(programs() / "postgres", files)
    asyncio.run(initialise(files, password=PASSWORD, identity=identity, log=files / "initdb.log"))
    with (
        reserve_ports({}, None) as ports,
        running(nats_spec(root / "nats", port=ports.nats, monitor_port=ports.nats_monitor, passwords=BUS)),
        running(postgres_spec(files, port=ports.postgres, password=PASSWORD, identity=identity)),
    ):
        asyncio.run(ensure_database(ports.postgres, PASSWORD))
        migrate(admin_url(ports.postgres, PASSWORD), {ROLE: PASSWORD})
        database = admin_url(ports.postgres, PASSWORD).replace("//postgres:", f"//{ROLE}:")
        yield Servers(f"nats://{OPERATOR}:{PASSWORD}@{HOST}:{ports.nats}", database)


def message(subject: str, size: int = 500) -> Message:
    return Message(id=uuid7(), subject=subject, body=bytes(size))


async def deliveries(at: Servers, count: int) -> list[float]:
    """Seconds from publishing to receiving, on two connections."""
    sending, receiving = await connect(at.nats, "sender"), await connect(at.nats, "receiver")
    took: list[float] = []
    async with aclosing(receiving.consume("EVIDENCE", "bench", [EVIDENCE])) as received:
        for _ in range(WARM_UP + count):
            arriving = asyncio.ensure_future(anext(received))
            began = time.perf_counter()
            await sending.publish(message(EVIDENCE))
            delivery = await arriving
            took.append(time.perf_counter() - began)
            await delivery.ack()
    await sending.close()
    await receiving.close()
    return took[WARM_UP:]


async def relayed(at: Servers, count: int) -> list[float]:
    """Seconds from waking the relay after a commit to receiving."""
    took: list[float] = []
    async with store_of(at) as store:
        sending, receiving = await connect(at.nats, "sender"), await connect(at.nats, "receiver")
        relay = Relay(store, sending)
        running = asyncio.create_task(relay.run())
        async with aclosing(receiving.consume("DECISIONS", "bench", [DECISION])) as received:
            for _ in range(WARM_UP + count):
                arriving = asyncio.ensure_future(anext(received))
                async with store.transaction() as tx:
                    await tx.emit([message(DECISION)])
                began = time.perf_counter()
                relay.wake()
                delivery = await arriving
                took.append(time.perf_counter() - began)
                await delivery.ack()
        running.cancel()
        await asyncio.wait([running])
        await sending.close()
        await receiving.close()
    return took[WARM_UP:]


async def handled(at: Servers, count: int) -> list[float]:
    """Seconds for the transaction in which a service handles an event."""
    took: list[float] = []
    async with store_of(at) as store:
        async with store.transaction() as tx:
            await tx.load_all(JOBS)
        for number in range(WARM_UP + count):
            said = [message(DECISION, 600) for _ in range(3)]
            began = time.perf_counter()
            async with store.transaction() as tx:
                await tx.first_time(uuid7(), DECISION)
                await tx.save(JOBS, "job", JobRow(phase="running", generation=number))
                await tx.emit(said)
            took.append(time.perf_counter() - began)
    return took[WARM_UP:]


@contextlib.asynccontextmanager
async def store_of(at: Servers) -> AsyncIterator[PostgresStore]:
    store = await PostgresStore.connect(at.postgres, "controller", application_name="bench")
    try:
        yield store
    finally:
        await store.close()


def in_ms(seconds: Sequence[float]) -> dict[str, Any]:
    percents = {f"p{percent}": percentile(seconds, percent) for percent in (50, 90, 99)}
    found = percents | {"max": max(seconds)}
    return {name: rounded(value * 1e3, 3) for name, value in found.items() if value is not None}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="200 of each")
    count = 200 if parser.parse_args().quick else 2000
    log_to_stderr("bench")
    here, load_before = machine.describe(), machine.load()

    figures: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as root, servers(Path(root)) as at:
        for name, measure in (("delivery", deliveries), ("relay", relayed), ("handled event", handled)):
            figures[name] = in_ms(asyncio.run(measure(at, count)))
            tell(f"{name}: {figures[name]['p50']} ms")

    print(f"\n{machine.in_words(here)}; load {load_before} before\n")
    table(("ms", "p50", "p90", "p99", "max"), [(name, *row.values()) for name, row in figures.items()])
    print()
    final_line({"bench": "messages", "machine": here, "load": load_before, "count": count, "ms": figures})


if __name__ == "__main__":
    main()
