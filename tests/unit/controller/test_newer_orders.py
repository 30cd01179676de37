"""A job counts its generations from the newest order on the bus, if a restored database forgot some."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from holdfast.bus.in_memory import MemoryBroker
from holdfast.orders.node import NodeOrder
from holdfast.subjects import DESIRED_BUCKET
from holdfast_controller.newer_orders import READ_AT_ONCE, newest_generations
from holdfast_controller.store import JOBS, USED_NAMES
from tests.scenes.failing_job import FailingJob
from tests.scenes.order_keys import SIGNER, signed

AT = datetime(2026, 1, 1, tzinfo=UTC)


def order(node: str, job: str | None, generation: int) -> NodeOrder:
    return NodeOrder(node=node, epoch=3, generation=generation, job=job)


async def test_the_newest_order_of_each_job_counts_and_only_what_the_controller_signed() -> None:
    broker = MemoryBroker()
    bus = broker.client("test")
    for one in (order("a", "x", 4), order("b", "x", 7), order("c", "y", 2), order("d", None, 9)):
        await bus.put(DESIRED_BUCKET, one.key, signed(one, AT))
    forged = order("e", "x", 1000)
    await bus.put(DESIRED_BUCKET, forged.key, forged.encode())
    without_order = [f"n{number}" for number in range(READ_AT_ONCE)]
    nodes = [*without_order, "a", "b", "c", "d", "e"]
    assert await newest_generations(bus, nodes, SIGNER["controller"]) == {"x": 7, "y": 2}


async def test_no_decision_is_made_before_the_bus_answers() -> None:
    broker = MemoryBroker()
    one = order("a", "x", 4)
    await broker.client("test").put(DESIRED_BUCKET, one.key, signed(one, AT))
    bus = broker.client("controller")
    bus.disconnect()
    task = asyncio.create_task(newest_generations(bus, ["a"], SIGNER["controller"]))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not task.done()
    bus.reconnect()
    assert await asyncio.wait_for(task, 30) == {"x": 4}


def test_the_next_generation_is_above_the_one_that_the_database_forgot() -> None:
    scene = FailingJob(nodes=("a", "b"))
    scene.train()
    controller, state = scene.controller, scene.state
    assert controller.members() == ["a", "b"]
    controller.count_from({"job": 7, "forgotten": 3}, state.submitted_at)
    # The state is read again after each loss of the database.
    controller.load({JOBS.name: {"job": state}, USED_NAMES.name: {}})
    scene.exit("a", exit_code=-9)
    assert (state.generation, scene.state.generation) == (1, 8)
