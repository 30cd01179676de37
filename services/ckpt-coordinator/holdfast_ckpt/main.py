"""The checkpoint coordinator's process: reads the settings once, wires, runs."""

from __future__ import annotations

from holdfast import process
from holdfast.bus.nats import connect
from holdfast.process import Process
from holdfast.service import ServiceShell
from holdfast.store.postgres import PostgresStore
from holdfast_ckpt.service import Coordinator


async def serve(this: Process) -> None:
    """Run the checkpoint coordinator until cancelled."""
    bus = await connect(this.settings.nats_url, "ckpt-coordinator")
    store = await PostgresStore.connect(
        this.settings.database_url, "ckpt", application_name="holdfast-ckpt-coordinator"
    )
    try:
        await ServiceShell(Coordinator(), bus, store).run()
    finally:
        await bus.close()
        await store.close()


def main() -> None:
    """Entry point."""
    process.run("holdfast_ckpt", serve, description="The catalogue of restorable steps.")
