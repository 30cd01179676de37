"""Repair of the backup orders on the bus; see `holdfast.daemon.orders.order_repair`."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from holdfast.clock import Now
from holdfast.daemon.orders.order_repair import Correction
from holdfast.orders.backup import BackupOrder
from holdfast.orders.signatures import OrderSigner


def corrections(orders: Iterable[BackupOrder], signer: OrderSigner, now: Now) -> dict[str, Correction]:
    return {order.key: partial(_correction, order, signer, now) for order in orders}


def _correction(order: BackupOrder, signer: OrderSigner, now: Now, body: bytes | None) -> bytes | None:
    """Return the bytes to write over `body`; None if it is right."""
    return None if signer.own(BackupOrder, order.key, body) == order else signer.sign(order, now())
