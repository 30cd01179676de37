"""The analyzer's process: reads the settings once, wires, runs."""

from __future__ import annotations

from holdfast.bus.nats import connect
from holdfast.daemon import process
from holdfast.daemon.orders.order_keys import signer_of
from holdfast.daemon.process import Daemon
from holdfast.daemon.service_shell import ServiceShell
from holdfast.store.postgres import PostgresStore
from holdfast_analyzer.register import engines_of
from holdfast_analyzer.service import Analyzer


async def serve(this: Daemon) -> None:
    """Run the analyzer until it is stopped."""
    signer = signer_of(this, "analyzer")
    bus = await connect(this.nats_url, "analyzer", network=this.settings.network)
    store = await PostgresStore.connect(this.database_url, "analyzer", application_name="holdfast-analyzer")
    try:
        await ServiceShell(Analyzer(engines_of(this.settings)), bus, store, signer=signer).run()
    finally:
        await bus.close()
        await store.close()


def main() -> None:
    process.run("holdfast_analyzer", serve, description="Findings: conclusions from evidence and samples.")
