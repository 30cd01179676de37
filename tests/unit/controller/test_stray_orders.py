"""Orders on the bus for jobs that do not exist are replaced by orders for no ranks."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from holdfast.bus.in_memory import MemoryBroker
from holdfast.events.parts.job import JobSpec
from holdfast.orders.node import NodeOrder, Placement
from holdfast.subjects import DESIRED_BUCKET
from holdfast_controller.stray_orders import end_stray_orders
from tests.scenes.order_keys import SIGNER, signed

AT = datetime(2026, 1, 1, tzinfo=UTC)


def order(node: str, job: str | None) -> NodeOrder:
    spec = JobSpec(name=job or "x", script="t.py", cwd="/", directory="/")
    placement = Placement(job=spec, node_rank=0, master_addr="h", master_port=1) if job else None
    return NodeOrder(node=node, epoch=3, generation=7, job=job, placement=placement)


async def test_ranks_of_an_unknown_job_are_ended_and_all_else_is_left() -> None:
    broker = MemoryBroker()
    bus = broker.client("test")
    orders = {"node.a": order("a", "forgotten"), "node.b": order("b", "known"), "node.c": order("c", None)}
    for key, one in orders.items():
        await bus.put(DESIRED_BUCKET, key, signed(one, AT))
    forged = order("f", "forged").encode()
    for key, body in (("node.d", b"not an order"), ("node.f", forged)):
        await bus.put(DESIRED_BUCKET, key, body)
    task = asyncio.create_task(
        end_stray_orders(broker.client("controller"), {"known"}.__contains__, SIGNER["controller"], lambda: AT)
    )

    async def until(key: str, wanted: NodeOrder) -> None:
        async with asyncio.timeout(30):
            while await bus.get(DESIRED_BUCKET, key) != signed(wanted, AT):
                assert not task.done()

    await until("node.a", NodeOrder(node="a", epoch=3, generation=8, job="forgotten"))
    assert await bus.get(DESIRED_BUCKET, "node.b") == signed(orders["node.b"], AT)
    assert await bus.get(DESIRED_BUCKET, "node.c") == signed(orders["node.c"], AT)
    # Also one that is put later.
    await bus.put(DESIRED_BUCKET, "node.e", signed(order("e", "forgotten"), AT))
    await until("node.e", NodeOrder(node="e", epoch=3, generation=8, job="forgotten"))
    # The controller signs nothing that follows from what another wrote.
    assert await bus.get(DESIRED_BUCKET, "node.f") == forged
    task.cancel()
    await asyncio.wait([task])
