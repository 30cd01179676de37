"""How late orders reach the agent of a busy node: from the put of a key until another process has it.

    python bench/late_orders.py             200 orders for each load, a minute
    python bench/late_orders.py --quick     40 of each

A nats-server as the embedded cluster runs it. The reading process follows its key as an agent does; beside it processes
compute that never wait, so many for each processor. The proving ground draws from these figures how late orders come to
a node that waits; for busy ones it assumes more (`proving/holdfast_proving/evidence/arrivals.py`).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import machine
from messages import BUS, PASSWORD, in_ms, running
from report import final_line, table, tell

from holdfast.bus.accounts import OPERATOR
from holdfast.bus.nats import connect
from holdfast.daemon.logs import log_to_stderr
from holdfast.embedded.servers.credentials import HOST
from holdfast.embedded.servers.nats import nats_spec
from holdfast.embedded.servers.ports import reserve_ports
from holdfast.subjects import DESIRED_BUCKET

LOADS = (0, 1, 4, 16)
"""Computing processes for each processor."""
KEY = "slow.bench"
BYTES = 2_000
EVERY_S = 0.05
WARM_UP = 5
PROCESSES = get_context("spawn")


def read(url: str, count: int, report: Connection) -> None:
    """Report the monotonic time at which each order is here."""

    async def follow() -> None:
        bus = await connect(url, "reader")
        report.send(0)
        arrived = 0
        async for update in bus.watch(DESIRED_BUCKET, KEY):
            if update.body and int.from_bytes(update.body[:8], "big") == arrived:
                report.send(time.monotonic_ns())
                arrived += 1
                if arrived == count:
                    break
        await bus.close()

    asyncio.run(follow())


async def arrivals(url: str, count: int) -> list[float]:
    """Return the seconds that each order took."""
    here, there = PROCESSES.Pipe()
    reader = PROCESSES.Process(target=read, args=(url, WARM_UP + count, there), daemon=True)
    reader.start()
    bus = await connect(url, "sender")
    await asyncio.to_thread(here.recv)
    took: list[float] = []
    for number in range(WARM_UP + count):
        began = time.monotonic_ns()
        await bus.put(DESIRED_BUCKET, KEY, number.to_bytes(8, "big") + bytes(BYTES))
        took.append((await asyncio.to_thread(here.recv) - began) / 1e9)
        await asyncio.sleep(EVERY_S)
    await bus.close()
    reader.join()
    return took[WARM_UP:]


@contextlib.contextmanager
def busy(processes: int) -> Iterator[None]:
    """Keep the processors busy."""
    compute = (sys.executable, "-S", "-c", "while True: pass")
    started = [subprocess.Popen(compute) for _ in range(processes)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="40 of each")
    count = 40 if parser.parse_args().quick else 200
    log_to_stderr("bench")
    here, load_before, cores = machine.describe(), machine.load(), os.cpu_count() or 1
    found: dict[str, Sequence[float]] = {}
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as root:
        (Path(root) / "nats").mkdir()
        with (
            reserve_ports({}, None) as ports,
            running(nats_spec(Path(root) / "nats", port=ports.nats, monitor_port=ports.nats_monitor, passwords=BUS)),
        ):
            url = f"nats://{OPERATOR}:{PASSWORD}@{HOST}:{ports.nats}"
            for load in LOADS:
                with busy(load * cores):
                    found[str(load)] = asyncio.run(arrivals(url, count))
                tell(f"{load} computing processes for each processor: {in_ms(found[str(load)])}")
    print(f"\n{machine.in_words(here)}; load {load_before} before\n")
    figures = {load: in_ms(took) for load, took in found.items()}
    table(
        ("computing processes per processor", "p50", "p90", "p99", "max"),
        [(k, *v.values()) for k, v in figures.items()],
    )
    print()
    final_line({"bench": "late_orders", "machine": here, "load": load_before, "count": count, "ms": figures})


if __name__ == "__main__":
    main()
