"""The controller dies whenever a result of stop-time checks is here, and goes on from its rows."""

from __future__ import annotations

import logging

import structlog

from holdfast.events import ChecksEnded, ChecksStarted, DiagnosticResult, Event, JobFinished
from tests.sim.checkers import check
from tests.sim.cluster import SimCluster

SEEDS = range(12)


class DyingController(SimCluster):
    """A cluster whose controller dies a moment after each event of checks."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, nodes=7, jobs={"large": (5, 2)})
        self.died = 0
        self.world.after(0.0, self._watch)
        self._watched = 0

    async def _watch(self) -> None:
        seen: list[Event] = self.log[self._watched :]
        self._watched = len(self.log)
        if any(isinstance(event, ChecksStarted | DiagnosticResult) for event in seen) and self.controller.up:
            self.died += 1
            await self.controller.crash()
        self.world.after(0.2, self._watch)


async def test_checks_go_on_where_the_controller_died() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    died = concluded = 0
    for seed in SEEDS:
        cluster = DyingController(seed)
        await cluster.submit()
        for at in (8.0, 14.0, 20.0):
            cluster.world.after(at, cluster.nodes[2].kill_rank)
            cluster.world.after(at + 1.0, cluster.nodes[3].kill_rank)
        cluster.world.after(60.0, lambda cluster=cluster: setattr(cluster.chaos, "active", False))
        assert await cluster.world.run(lambda cluster=cluster: cluster.is_over, limit_s=2000.0), seed
        assert await cluster.world.run(lambda cluster=cluster: cluster.is_calm, limit_s=2500.0), seed
        await cluster.world.run(lambda: False, limit_s=cluster.world.seconds + 30.0)
        check(cluster)
        assert any(isinstance(event, JobFinished) for event in cluster.log)
        started = {event.generation for event in cluster.log if isinstance(event, ChecksStarted)}
        ended = {event.generation for event in cluster.log if isinstance(event, ChecksEnded)}
        assert ended <= started, seed
        died += cluster.died
        concluded += len(ended)
    assert concluded >= 3 and died >= concluded, (concluded, died)
