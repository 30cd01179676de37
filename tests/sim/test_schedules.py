"""Thousands of seeded schedules of crashes, losses, duplicates, delays and reorderings, run by the production code.

A failing seed is printed; `pytest tests/sim --seed N` runs that one alone.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.sim.checkers import check
from tests.sim.cluster import SimCluster

SCHEDULES = 2000
CHUNKS = 8
FAULTS = ("rank", "rank", "agent", "agent", "zygote", "node", "partition", "controller", "standby")


async def run_schedule(seed: int) -> SimCluster:
    """One history: two jobs on five of seven nodes, faults for a while, then calm until both have ended."""
    cluster = SimCluster(seed, nodes=7, jobs={"large": (3, 2), "small": (2, 1)})
    world = cluster.world
    await cluster.submit()
    for _ in range(world.random.randint(0, 16)):
        node = world.random.choice(cluster.nodes)
        at = world.random.uniform(1.0, 50.0)
        fault = world.random.choice(FAULTS)
        if fault == "rank":
            world.after(at, node.kill_rank)
        elif fault == "agent":
            world.after(at, node.restart_agent)
        elif fault == "node":
            world.after(at, node.power_off)
            world.after(at + world.random.uniform(1.0, 30.0), node.power_on)
        elif fault == "zygote":
            world.after(at, node.kill_zygote)
        elif fault == "partition":
            world.after(at, lambda node=node: setattr(node, "connected", False))
            world.after(at + world.random.uniform(1.0, 30.0), lambda node=node: setattr(node, "connected", True))
        else:
            world.after(at, (cluster.controller if fault == "controller" else cluster.standby).crash)
    world.after(80.0, lambda: setattr(cluster.chaos, "active", False))
    ended = await world.run(lambda: cluster.is_over, limit_s=4000.0)
    assert ended, f"not every job ended: {cluster.phases()} at {world.seconds:.0f} s"
    await world.run(lambda: False, limit_s=world.seconds + 30)
    return cluster


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_schedules(chunk: int, request: pytest.FixtureRequest) -> None:
    only = request.config.getoption("--seed")
    if only is not None and chunk:
        pytest.skip("one seed was asked for")
    seeds = [only] if only is not None else range(chunk, SCHEDULES, CHUNKS)
    for seed in seeds:
        try:
            check(asyncio.run(run_schedule(seed)))
        except BaseException as error:
            error.add_note(f"seed {seed}: run it again with pytest tests/sim --seed {seed}")
            raise
