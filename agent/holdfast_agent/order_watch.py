"""The orders that stand under a key of this node: its ranks, the copies of its checkpoints."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Protocol, TypeVar

from holdfast.bus import Bus, KeyUpdate
from holdfast.subjects import DESIRED_BUCKET


class Order(Protocol):
    """What one node is told."""

    @property
    def node(self) -> str: ...


T = TypeVar("T", bound=Order)
Reject = Callable[[KeyUpdate, bytes, str], None]


async def orders_for(node: str, bus: Bus, key: str, decode: Callable[[bytes], T], reject: Reject) -> AsyncIterator[T]:
    """Each order, as it comes, for ever; what is none, or another node's, is rejected."""
    async for update in bus.watch(DESIRED_BUCKET, key):
        if update.body is None:
            continue
        try:
            order = decode(update.body)
        except ValueError as error:
            reject(update, update.body, str(error))
            continue
        if order.node == node:
            yield order
        else:
            reject(update, update.body, f"it is addressed to node {order.node!r}")
