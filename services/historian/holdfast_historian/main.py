"""The historian's process: records every event on the bus into Postgres."""

from __future__ import annotations

import asyncio

from holdfast.bus import Bus
from holdfast.bus.nats import connect
from holdfast.clock import Now, system_now
from holdfast.daemon import process
from holdfast.daemon.pings import answer_pings
from holdfast.daemon.process import Daemon
from holdfast.daemon.ready import announce_ready
from holdfast.settings.addresses import Address
from holdfast.settings.findings.telemetry import TelemetryPolicy
from holdfast_historian.floods import FloodGuard
from holdfast_historian.partitions import PartitionPolicy
from holdfast_historian.retraining import Retraining
from holdfast_historian.service import Historian
from holdfast_historian.store import HistorianStore


async def run(
    bus: Bus,
    database_url: Address,
    now: Now,
    policy: PartitionPolicy | None = None,
    telemetry: TelemetryPolicy | None = None,
) -> None:
    """Record until cancelled, also while bus or database are down; raise NotMigrated if the tables are missing."""
    store = await HistorianStore.connect(database_url)
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(Historian(bus, store, now, policy).run(), name="record")
            retraining = Retraining(bus, store, database_url, telemetry or TelemetryPolicy(), now)
            group.create_task(retraining.run(), name="retraining")
            group.create_task(answer_pings(bus, "historian"), name="pings")
            announce_ready()
    finally:
        await store.close()


async def serve(this: Daemon) -> None:
    """Run the historian until it is stopped."""
    bus = await connect(this.nats_url, "historian", network=this.settings.network)
    try:
        policy = PartitionPolicy(keep_days=this.settings.history.keep_days or None)
        async with asyncio.TaskGroup() as group:
            group.create_task(run(bus, this.database_url, system_now, policy, this.settings.telemetry), name="run")
            group.create_task(FloodGuard(bus, system_now).run(), name="floods")
    finally:
        await bus.close()


def main() -> None:
    process.run("holdfast_historian", serve, description="Records every event into Postgres.")
