"""Orders under a key of this node: its ranks, the copies of its checkpoints."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import TypeVar

from holdfast.bus import Bus, KeyUpdate
from holdfast.orders.backup import BackupOrder
from holdfast.orders.base import UnreadableOrder
from holdfast.orders.node import NodeOrder
from holdfast.subjects import DESIRED_BUCKET

T = TypeVar("T", NodeOrder, BackupOrder)
Reject = Callable[[KeyUpdate, bytes, str], None]


async def orders_for(node: str, bus: Bus, kind: type[T], reject: Reject) -> AsyncIterator[T]:
    """Yield each order of this kind; reject those that cannot be read or are addressed to another node."""
    async for update in bus.watch(DESIRED_BUCKET, kind.key_of(node)):
        if update.body is None:
            continue
        try:
            order = kind.decode(update.body)
        except UnreadableOrder as error:
            reject(update, update.body, str(error))
            continue
        if order.node == node:
            yield order
        else:
            reject(update, update.body, f"it is addressed to node {order.node!r}")
