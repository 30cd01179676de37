"""The bus delivers its whole history again, weeks later, to services whose inboxes have forgotten it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from holdfast import events
from holdfast.store.message_retention import INBOX_KEPT
from tests.sim.cluster import SimCluster, SimService
from tests.sim.network import SimDelivery
from tests.sim.test_schedules import run_schedule


@pytest.mark.parametrize("seed", range(8))
async def test_old_history_changes_nothing(seed: int) -> None:
    cluster = await run_schedule(seed)
    later = cluster.world.now() + timedelta(seconds=1)
    for service in cluster.services:
        await service.store.prune(later + INBOX_KEPT)
        assert not service.store.database.inbox
        await service.shell.load()
        database = service.store.database
        rows, emitted = dict(database.rows), len(database.unpublished)
        received = await _deliver_all(cluster, service)
        assert received > 10
        assert database.rows == rows
        assert len(database.unpublished) == emitted


async def _deliver_all(cluster: SimCluster, service: SimService) -> int:
    """Deliver what it subscribes to, in order, as to a consumer that was deleted and made again."""
    received = 0
    for stored_at, message in cluster.stored:
        if isinstance(events.decode(message.body), service.handles):
            delivery = SimDelivery(message.subject, message.body, lambda _: None, 1, stored_at)
            await service.shell.handle(delivery)
            assert delivery.settled
            received += 1
    return received
