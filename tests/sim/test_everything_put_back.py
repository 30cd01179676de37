"""The record goes back to a backup and the bus loses everything, while agents are as new as ever.

What agents publish again is of generations that the record does not know. No number is used for two generations, no
node is evicted for what it reported before, and the job ends as if nothing had been lost. HOLDFAST_LONG=1 runs 400.
"""

from __future__ import annotations

import logging
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import datetime

import pytest
import structlog

from holdfast.events import BusWentBack, Eviction, GenerationStarted, IncidentOpened
from holdfast_controller import service
from holdfast_controller.plan import planner
from holdfast_controller.plan.loss import forgotten_orders
from tests.sim.cluster import SimCluster
from tests.sim.rewind import AWAY_S, Rewind

SEEDS = range(400 if "HOLDFAST_LONG" in os.environ else 24)
EVICTING = (43, 60)
"""Of the histories in which such a controller evicts: one in sixty does."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.reset_defaults()


async def history(seed: int) -> tuple[SimCluster, Rewind]:
    """Ranks die after the backup, some nodes are cut off or lose power, and some come back late."""
    cluster = SimCluster(seed, nodes=5, jobs={"job": (3, 2)})
    world, chance = cluster.world, cluster.world.random
    cluster.chaos.active = False
    rewind = Rewind(cluster)
    await cluster.submit()
    world.after(5.0, rewind.back_up)
    at = 5.0
    for _ in range(chance.randint(2, 6)):
        at += chance.uniform(1.0, 5.0)
        world.after(at, chance.choice(cluster.nodes).kill_rank)
    lost_at = at + chance.uniform(0.0, 3.0)
    power_fails = chance.random() < 0.3
    for node in cluster.nodes:
        back_at = lost_at + AWAY_S + chance.choice((0.1, 0.1, 0.1, chance.uniform(1.0, 60.0)))
        if power_fails:
            world.after(lost_at, node.power_off)
            world.after(back_at, node.power_on)
        elif chance.random() < 0.2:
            # What it reports until then waits in its spool.
            world.after(lost_at - chance.uniform(0.0, 4.0), lambda node=node: setattr(node, "connected", False))
        if back_at > lost_at + AWAY_S + 1.0:
            world.after(lost_at + AWAY_S, lambda node=node: setattr(node, "connected", False))
            world.after(back_at, lambda node=node: setattr(node, "connected", True))
            rewind.late.add(node.name)
    world.after(lost_at, rewind.lose)
    ended = await world.run(lambda: cluster.is_over and rewind.back_at > 0, limit_s=3000.0)
    assert ended, f"the job did not end: {cluster.phases()}"
    return cluster, rewind


def check(cluster: SimCluster, rewind: Rewind) -> None:
    """Raise on a number that two generations have, and on an eviction or incident that follows from the life before."""
    assert cluster.phases() == {"job": "completed"}
    for event in cluster.log[rewind.known :]:
        if isinstance(event, Eviction):
            assert event.node in rewind.late, f"{event.node} was evicted for what was over: {event.reason}"
    started: dict[int | None, set[datetime]] = defaultdict(set)
    for event in cluster.log:
        if isinstance(event, GenerationStarted):
            started[event.generation].add(event.at)
    twice = sorted(number or 0 for number, at in started.items() if len(at) > 1)
    assert not twice, f"generations that were started twice: {twice}"


async def _failing(seeds: Iterable[int] = SEEDS) -> dict[int, str]:
    found = {}
    for seed in seeds:
        try:
            check(*await history(seed))
        except AssertionError as error:
            found[seed] = str(error)
    return found


async def test_nothing_of_before_counts_after_everything_was_put_back() -> None:
    assert await _failing() == {}


async def test_the_node_that_speaks_first_has_the_job_started_again() -> None:
    cluster, rewind = await history(0)
    new = cluster.log[rewind.known :]
    opened = next(event for event in new if isinstance(event, IncidentOpened))
    cause = next(event for event in new if event.id == opened.cause)
    assert isinstance(cause, BusWentBack) and "the database went back to generation 1" in opened.reason


async def test_a_controller_that_counts_on_from_what_it_knows_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "generations_max", lambda *_: 0)
    monkeypatch.setattr(forgotten_orders, "generations_max", lambda *_: 0)
    monkeypatch.setitem(planner.TRAINING.events, BusWentBack, lambda *_: None)  # type: ignore[arg-type]
    found = (await _failing((*SEEDS, *EVICTING))).values()
    assert any("twice" in why for why in found) and any("evicted for what was over" in why for why in found)
