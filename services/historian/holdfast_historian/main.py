"""The historian's process: records every event on the bus into Postgres."""

from __future__ import annotations

import asyncio
import os

from holdfast.bus import Bus
from holdfast.bus.nats import connect
from holdfast.clock import Now, system_now
from holdfast_historian.partitions import PartitionPolicy
from holdfast_historian.service import Historian
from holdfast_historian.store import HistorianStore


async def run(bus: Bus, database_url: str, now: Now, policy: PartitionPolicy | None = None) -> None:
    """Record until cancelled; bus and database may be down at any time, also at the start.

    Raises:
        NotMigrated: the database lacks the historian's tables.
    """
    store = await HistorianStore.connect(database_url)
    try:
        await Historian(bus, store, now, policy).run()
    finally:
        await store.close()


async def _main() -> None:
    bus = await connect(os.environ["HOLDFAST_NATS_URL"], "historian")
    try:
        await run(bus, os.environ["HOLDFAST_DATABASE_URL"], system_now)
    finally:
        await bus.close()


def main() -> None:
    """Run the process; addresses come from HOLDFAST_NATS_URL and HOLDFAST_DATABASE_URL."""
    asyncio.run(_main())
