"""Repair of the backup orders on the bus; see `holdfast.daemon.order_repair`."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from holdfast.daemon.order_repair import Correction
from holdfast.orders.backup import BackupOrder
from holdfast.orders.base import UnreadableOrder


def corrections(orders: Iterable[BackupOrder]) -> dict[str, Correction]:
    return {BackupOrder.key_of(order.node): partial(_correction, order) for order in orders}


def _correction(order: BackupOrder, body: bytes | None) -> bytes | None:
    """Return the bytes to write over `body`; None if it is right."""
    try:
        there = BackupOrder.decode(body) if body is not None else None
    except UnreadableOrder:
        there = None
    return None if there == order else order.encode()
