"""Repair of the orders to nodes on the bus (`holdfast.daemon.order_repair`).

Agents refuse orders that they cannot read or that are older than the newest; this restores the controller's order.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import msgspec

from holdfast.daemon.order_repair import Correction
from holdfast.orders.base import UnreadableOrder
from holdfast.orders.node import NodeOrder


def truths(orders: Iterable[NodeOrder]) -> dict[str, Correction]:
    return {NodeOrder.key_of(order.node): partial(_corrected, order) for order in orders}


def correction(body: bytes | None, truth: NodeOrder) -> NodeOrder | None:
    """Return the order to put in place of `body`; None if that is correct.

    `truth` is never older than what the controller published: a higher fence on the bus is not from the controller.
    """
    try:
        found = NodeOrder.decode(body) if body is not None else None
    except UnreadableOrder:
        found = None
    if found is None or found.fence < truth.fence:
        return truth
    if found.fence > truth.fence:
        return msgspec.structs.replace(truth, supersedes=found.fence)
    return truth if found.placement != truth.placement else None


def _corrected(truth: NodeOrder, body: bytes | None) -> bytes | None:
    right = correction(body, truth)
    return None if right is None else right.encode()
