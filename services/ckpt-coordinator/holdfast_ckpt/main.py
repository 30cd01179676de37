"""The checkpoint coordinator's process: it reads the settings, connects and runs."""

from __future__ import annotations

import asyncio

from holdfast.bus.nats import connect
from holdfast.clock import system_now
from holdfast.daemon import process
from holdfast.daemon.orders.order_keys import signer_of
from holdfast.daemon.orders.order_repair import Correction, keep_orders, repair_orders
from holdfast.daemon.process import Daemon
from holdfast.daemon.service_shell import ServiceShell
from holdfast.store.postgres import PostgresStore
from holdfast_ckpt.backup_order_repair import corrections
from holdfast_ckpt.service import Coordinator


async def serve(this: Daemon) -> None:
    """Run the checkpoint coordinator until it is stopped."""
    signer = signer_of(this, "ckpt")
    coordinator = Coordinator(this.settings.checkpoint)
    bus = await connect(this.nats_url, "ckpt-coordinator", network=this.settings.network)
    store = await PostgresStore.connect(this.database_url, "ckpt", application_name="holdfast-ckpt-coordinator")

    def in_force() -> dict[str, Correction]:
        return corrections(coordinator.orders_in_force(), signer, system_now)

    shell = ServiceShell(coordinator, bus, store, signer=signer, repair=lambda: repair_orders(bus, in_force))
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(shell.run(), name="shell")
            group.create_task(keep_orders(bus, in_force), name="repair orders")
    finally:
        await bus.close()
        await store.close()


def main() -> None:
    process.run("holdfast_ckpt", serve, description="Backup plans, and the catalogue of restorable steps.")
