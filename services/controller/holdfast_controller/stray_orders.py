"""Orders on the bus that give ranks to a job that does not exist: a restored database forgot it.

The nodes that obeyed such an order would run its ranks until another job gets them. Orders that this controller
did not sign are left alone: no node obeys them, and an answer to one would sign a fence that it chose.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import structlog

from holdfast.bus import Bus, BusUnavailable
from holdfast.clock import Now
from holdfast.orders.node import NodeOrder
from holdfast.orders.signatures import OrderSigner
from holdfast.subjects import DESIRED_BUCKET

log = structlog.get_logger(__name__)


async def end_stray_orders(bus: Bus, exists: Callable[[str], bool], signer: OrderSigner, now: Now) -> None:
    """Replace each order for a job that does not exist by one for no ranks, until cancelled.

    `exists` must already return True for a job when its first order is published.
    """
    async for update in bus.watch(DESIRED_BUCKET, NodeOrder.key_of("*")):
        order = signer.own(NodeOrder, update.key, update.body)
        if order is None or order.placement is None or order.job is None or exists(order.job):
            continue
        log.warning("an order is for a job that does not exist: ends its ranks", node=order.node, job=order.job)
        try:
            await bus.put(DESIRED_BUCKET, update.key, signer.sign(idle(order), now()))
        except BusUnavailable:
            # The watch yields the order again once the bus is back.
            continue


def idle(order: NodeOrder) -> NodeOrder:
    """Return the order that follows this one and asks for no ranks."""
    return msgspec.structs.replace(order, generation=order.generation + 1, placement=None, supersedes=None)
