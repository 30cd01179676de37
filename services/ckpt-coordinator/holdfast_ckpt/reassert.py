"""What the bus must have under the key of a node's backup order; see `holdfast.asserting`."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from holdfast import backup_orders
from holdfast.asserting import Correction
from holdfast.backup_orders import BackupOrder
from holdfast.subjects import backup_key


def truths(orders: Iterable[BackupOrder]) -> dict[str, Correction]:
    """For each key the correction of what is there."""
    return {backup_key(order.node): partial(correction, order) for order in orders}


def correction(truth: BackupOrder, body: bytes | None) -> bytes | None:
    """What to put in the place of `body`, None if that is as it should be."""
    try:
        there = backup_orders.decode(body) if body is not None else None
    except backup_orders.UnreadableBackupOrder:
        there = None
    return None if there == truth else backup_orders.encode(truth)
