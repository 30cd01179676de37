"""The zygote's command to warm the node up for an order."""

from __future__ import annotations

import msgspec

from holdfast.engines.checks.warm_up import WarmUpPlan, paths_of
from holdfast.orders.node import NodeOrder
from holdfast_agent.zygote.wire import StartWarmUp


def warm_up_command(order: NodeOrder, address: str) -> StartWarmUp:
    """Return the command; the order must have a warm-up. `address`: where other nodes reach this one."""
    placement = order.placement
    assert placement is not None and placement.warm_up is not None
    job, wanted = placement.job, placement.warm_up
    plan = WarmUpPlan(
        run=f"{order.job}/{order.generation}",
        node=order.node,
        node_rank=placement.node_rank,
        nodes=job.nnodes,
        devices=job.nproc_per_node if wanted.tests_devices else 0,
        address=address,
        store_host=placement.master_addr,
        store_port=placement.master_port,
        paths=paths_of(job),
        limit_s=wanted.limit_s,
    )
    return StartWarmUp(fence=order.fence, plan=msgspec.json.encode(plan), limit_s=wanted.limit_s)
