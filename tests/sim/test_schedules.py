"""Seeded schedules of crashes, losses, duplicates, delays and reorderings, run by the production code.

A failing seed is printed; `pytest tests/sim --seed N` runs that one alone. HOLDFAST_LONG=1 runs 2,000.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import traceback
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest
import structlog

from tests.garbage import search_rarely_for_garbage
from tests.sim.checkers import check
from tests.sim.cluster import SimCluster

SCHEDULES = 2000 if "HOLDFAST_LONG" in os.environ else 60
BATCH = 15
ONCE_WRONG = (372, 678)
"""More of them, at which the controller was wrong once."""
NICENESS = 5
"""Its time is its own: it takes what tests beside it, whose processes live in real time, leave of the cores."""
FAULTS = (
    *("rank", "rank", "agent", "agent", "zygote", "node", "forgetful node", "rack", "partition"),
    *(
        "controller",
        "standby",
        "freeze",
        "bus",
        "forgetful bus",
        "stop",
        "nan",
        "unfit",
        "alert",
        "service",
        "accused",
        "accused",
        "hang",
        "slow",
        "slow",
    ),
)


async def run_schedule(seed: int, faults: tuple[str, ...] = FAULTS) -> SimCluster:
    """One history: two jobs on five of seven nodes, faults for a while, then calm until both have ended. In a sixth
    the jobs may have fewer nodes, and ask for more than there are.
    """
    jobs, fewest = {"large": (3, 2), "small": (2, 1)}, dict[str, int]()
    if seed % 6 == 0:
        jobs, fewest = {"large": (6, 2), "small": (3, 1)}, {"large": 2, "small": 1}
    cluster = SimCluster(seed, nodes=7, jobs=jobs, fewest=fewest)
    world = cluster.world
    await cluster.submit()
    for _ in range(world.random.randint(0, 16)):
        node = world.random.choice(cluster.nodes)
        at = world.random.uniform(1.0, 50.0)
        fault = world.random.choice(faults)
        if fault == "rank":
            world.after(at, node.kill_rank)
        elif fault == "service":
            world.after(at, node.miss_a_service)
        elif fault == "accused":
            world.after(at, lambda node=node: node.accuse_machine([it for it in cluster.nodes if it is not node]))
        elif fault == "agent":
            world.after(at, node.restart_agent)
        elif fault == "node":
            world.after(at, node.power_off)
            world.after(at + world.random.uniform(1.0, 30.0), node.power_on)
        elif fault == "forgetful node":
            loses_s = world.random.uniform(0.0, 5.0)
            world.after(at, lambda node=node, loses_s=loses_s: node.power_off(loses_s))
            world.after(at + world.random.uniform(1.0, 30.0), node.power_on)
        elif fault == "rack":
            # More nodes at once than the pool can replace: a job's claim grows while the one before is under way.
            for lost in world.random.sample(cluster.nodes, world.random.randint(3, 5)):
                gone = at + world.random.uniform(0.0, 1.0)
                world.after(gone, lost.power_off)
                world.after(gone + world.random.uniform(5.0, 30.0), lost.power_on)
        elif fault == "stop" and world.random.random() < 0.3:
            job = world.random.choice(cluster.specs).name
            world.after(at, lambda job=job: cluster.stop(job))
        elif fault == "unfit":
            world.after(at, node.break_down)
            world.after(at + world.random.uniform(10.0, 30.0), lambda node=node: setattr(node, "is_unfit", False))
        elif fault == "alert":
            confidence = world.random.choice(("evict", "tolerate", "hint"))
            world.after(at, lambda node=node, confidence=confidence: node.raise_alert(confidence))
        elif fault == "nan":
            world.after(at, cluster.trainings[world.random.choice(cluster.specs).name].poison)
        elif fault == "hang":
            training = cluster.trainings[world.random.choice(cluster.specs).name]
            world.after(at, lambda training=training: training.stand_still(world.now(), world.random.random()))
        elif fault == "slow":
            training = cluster.trainings[world.random.choice(cluster.specs).name]
            # It may be another one that is slow, or none any more.
            world.after(at, lambda node=node: setattr(node, "is_slow", True))
            world.after(at + world.random.uniform(5.0, 60.0), lambda node=node: setattr(node, "is_slow", False))
            world.after(at, lambda training=training: training.get_slow(world.now(), world.random.random()))
        elif fault == "zygote":
            world.after(at, node.kill_zygote)
        elif fault == "partition":
            world.after(at, lambda node=node: setattr(node, "connected", False))
            world.after(at + world.random.uniform(1.0, 30.0), lambda node=node: setattr(node, "connected", True))
        elif fault == "freeze":
            world.after(at, world.random.choice(cluster.services).freeze)
        elif fault == "bus":
            world.after(at, cluster.bus_outage)
        elif fault == "forgetful bus":
            loses_s = world.random.uniform(0.0, 10.0)
            world.after(at, lambda loses_s=loses_s: cluster.bus_outage(loses_s))
        else:
            world.after(at, (cluster.controller if fault == "controller" else cluster.standby).crash)
    world.after(80.0, lambda: setattr(cluster.chaos, "active", False))
    ended = await world.run(lambda: cluster.is_over, limit_s=4000.0)
    assert ended, f"not every job ended: {cluster.phases()} at {world.seconds:.0f} s"
    assert await world.run(lambda: cluster.is_calm, limit_s=world.seconds + 200.0), "something never came back"
    # Who was told late has acted by then.
    await world.run(lambda: False, limit_s=world.seconds + 30.0)
    return cluster


def stand_back() -> None:
    """What each process of the pool does first."""
    os.nice(NICENESS)
    search_rarely_for_garbage()
    # Ctrl-C reaches all processes; by itself the pool would take it for the failure of one batch and go on.
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def first_failure(seeds: Iterable[int]) -> str:
    """Run these schedules; what went wrong with the first that failed, if one did."""
    # Crashes and retries are what these histories are made of.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    for seed in seeds:
        try:
            check(asyncio.run(run_schedule(seed)))
        except Exception:  # noqa: BLE001 - whatever it is, it fails the test, with the seed that shows it again
            return f"{traceback.format_exc()}\nseed {seed}: run it again with pytest tests/sim --seed {seed}"
    return ""


@pytest.mark.timeout(1500)
def test_schedules(request: pytest.FixtureRequest) -> None:
    only = request.config.getoption("--seed")
    if only is not None:
        check(asyncio.run(run_schedule(only)))
        return
    batches: list[Iterable[int]] = [range(start, start + BATCH) for start in range(0, SCHEDULES, BATCH)]
    batches.append([seed for seed in ONCE_WRONG if seed >= SCHEDULES])
    with ProcessPoolExecutor(mp_context=get_context("spawn"), initializer=stand_back) as pool:
        failures = [failure for failure in pool.map(first_failure, batches) if failure]
    assert not failures, failures[0]
