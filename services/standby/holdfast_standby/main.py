"""The standby service's process: reads the settings once, wires, runs."""

from __future__ import annotations

import asyncio

from holdfast.bus.nats import connect
from holdfast.clock import system_now
from holdfast.daemon import process
from holdfast.daemon.process import Daemon
from holdfast.daemon.service_shell import ServiceShell
from holdfast.store.postgres import PostgresStore
from holdfast_standby.heartbeats import Heartbeats
from holdfast_standby.service import Standby


async def serve(this: Daemon) -> None:
    """Run the standby service until it is stopped."""
    bus = await connect(this.nats_url, "standby", network=this.settings.network)
    store = await PostgresStore.connect(this.database_url, "standby", application_name="holdfast-standby")
    standby = Standby(this.settings.timeouts, this.settings.pool, this.settings.retention)
    heartbeats = Heartbeats(bus, system_now, standby.node)
    standby.last_heartbeats, standby.only_instance = heartbeats.last, heartbeats.only
    try:
        async with asyncio.TaskGroup() as group:
            shell = ServiceShell(standby, bus, store)
            group.create_task(shell.run(), name="shell")
            # Before its state is read the inventory knows no node.
            await shell.loaded.wait()
            group.create_task(heartbeats.listen(), name="heartbeats")
            group.create_task(heartbeats.ask(), name="ask to register")
    finally:
        await bus.close()
        await store.close()


def main() -> None:
    process.run("holdfast_standby", serve, description="The node inventory and the warm pool.")
