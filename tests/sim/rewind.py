"""The fault that takes everything but the nodes: the stores of all services go back to a backup, and the bus is empty.

Nodes keep what they know and what they have published, and their relays publish again what the bus lost.
"""

from __future__ import annotations

import copy

from holdfast.store.in_memory import MemoryDatabase, MemoryStore
from holdfast_controller.service import Controller
from holdfast_proving.chaos.bus_disk import BusDisk
from tests.sim.cluster import SimCluster, SimService

AWAY_S = 20.0
"""Time from the loss until the backups are in place; no message is on its way any more then."""


def _copied(database: MemoryDatabase) -> MemoryDatabase:
    made = MemoryDatabase()
    made.rows, made.inbox = dict(database.rows), dict(database.inbox)
    made.unpublished, made.published = dict(database.unpublished), dict(database.published)
    made.positions, made.newest = copy.copy(database.positions), None
    return made


class Rewind:
    """Backups of a cluster's services, and their return with an empty bus."""

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self._backups: dict[SimService, MemoryDatabase] = {}
        self.back_at = -1.0
        """When the services were back; -1 before."""
        self.known = 0
        """Number of events in the log of the life before."""

        self.late: set[str] = set()
        """Nodes that come back later than the services."""

    def back_up(self) -> None:
        self._backups = {service: _copied(service.store.database) for service in self._cluster.services}

    def lose(self) -> None:
        cluster = self._cluster
        cluster.bus.is_up = False
        for node in cluster.nodes:
            node.connected = False
        for service in cluster.services:
            service.up = False
        cluster.world.after(AWAY_S, self._come_back)

    async def _come_back(self) -> None:
        cluster = self._cluster
        self.back_at, self.known = cluster.world.seconds, len(cluster.log)
        cluster.logged.clear()
        cluster.published.clear()
        cluster.desired.clear()
        cluster.bus.disk = BusDisk()
        for service, backup in self._backups.items():
            await self._start(service, backup)
        cluster.bus.come_back()
        for node in cluster.nodes:
            node.connected = True
        for service in cluster.services:
            service.go_on()
        for outbox in cluster.outboxes.values():
            cluster.world.after(0.001, outbox.relay)

    async def _start(self, service: SimService, backup: MemoryDatabase) -> None:
        service.waiting.clear()
        service.store = MemoryStore(backup, now=self._cluster.world.now)
        service.shell = service.new_shell()
        await service.shell.load()
        decider = service.shell.decider
        if isinstance(decider, Controller):
            waits = await service.store.pending(1)
            decider.count_from({}, self._cluster.world.now(), all_published=not waits)
        service.up = True
