"""Orders on the bus that are newer than the job they are for: a restored database forgot the generations since.

Nodes refuse generations that they have had, and checkpoints have a place for each. So a job counts on from the newest
order that this controller signed, and not from its own state. If the bus forgot the orders too, nodes name the
generation when they refuse one (`plan/members.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from holdfast.bus import Bus, BusUnavailable
from holdfast.daemon.retrying import until_available
from holdfast.orders.node import NodeOrder
from holdfast.orders.signatures import OrderSigner
from holdfast.subjects import DESIRED_BUCKET

READ_AT_ONCE = 50


async def newest_generations(bus: Bus, nodes: Sequence[str], signer: OrderSigner) -> dict[str, int]:
    """Return the newest generation of each job in the orders to these nodes, once the bus answers."""

    async def read(some: Sequence[str]) -> list[bytes | None]:
        return await asyncio.gather(*(bus.get(DESIRED_BUCKET, NodeOrder.key_of(node)) for node in some))

    newest: dict[str, int] = {}
    for first in range(0, len(nodes), READ_AT_ONCE):
        some = nodes[first : first + READ_AT_ONCE]
        bodies = await until_available(partial(read, some), BusUnavailable, "orders on the bus")
        for node, body in zip(some, bodies, strict=True):
            order = signer.own(NodeOrder, NodeOrder.key_of(node), body)
            if order is not None and order.job is not None:
                newest[order.job] = max(order.generation, newest.get(order.job, 0))
    return newest
