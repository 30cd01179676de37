"""What the bus must have under the key of a node's backup order; see `holdfast.daemon.order_repair`."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from holdfast.daemon.order_repair import Correction
from holdfast.orders.backup import BackupOrder
from holdfast.orders.base import UnreadableOrder


def truths(orders: Iterable[BackupOrder]) -> dict[str, Correction]:
    """For each key the correction of what is there."""
    return {BackupOrder.key_of(order.node): partial(correction, order) for order in orders}


def correction(truth: BackupOrder, body: bytes | None) -> bytes | None:
    """What to put in the place of `body`, None if that is as it should be."""
    try:
        there = BackupOrder.decode(body) if body is not None else None
    except UnreadableOrder:
        there = None
    return None if there == truth else truth.encode()
