"""What the bus must have under the key of a node's order; see `holdfast.daemon.order_repair`.

Agents refuse what they cannot read or what is older than what they know; this restores the true order.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import msgspec

from holdfast.daemon.order_repair import Correction
from holdfast.orders.base import UnreadableOrder
from holdfast.orders.node import NodeOrder


def truths(orders: Iterable[NodeOrder]) -> dict[str, Correction]:
    """For each key the correction of what is there."""
    return {NodeOrder.key_of(order.node): partial(_corrected, order) for order in orders}


def correction(body: bytes | None, truth: NodeOrder) -> NodeOrder | None:
    """What to put in the place of `body`, None if that is as it should be.

    The truth is never older than what was published of it: a higher fence on the bus was never given by the controller.
    """
    try:
        there = NodeOrder.decode(body) if body is not None else None
    except UnreadableOrder:
        there = None
    if there is None or there.fence < truth.fence:
        return truth
    if there.fence > truth.fence:
        return msgspec.structs.replace(truth, supersedes=there.fence)
    return truth if there.placement != truth.placement else None


def _corrected(truth: NodeOrder, body: bytes | None) -> bytes | None:
    right = correction(body, truth)
    return None if right is None else right.encode()
