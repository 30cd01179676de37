"""Orders hold: what the bus has under a node's key is compared with the truth now and then, and put right.

The bucket of desired state can lose a value (a wiped bus) or get a wrong one (a hostile or mistaken put).
Agents refuse what they cannot read or what is older than what they know; this restores the true order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from holdfast import desired
from holdfast.bus import Bus, BusUnavailable
from holdfast.desired import NodeDesired
from holdfast.subjects import DESIRED_BUCKET, desired_key

EVERY_S = 5.0

log = structlog.get_logger()


async def keep_asserting(bus: Bus, orders: Callable[[], list[NodeDesired]]) -> None:
    """Put right what differs, for ever."""
    while True:
        await asyncio.sleep(EVERY_S)
        try:
            for order in orders():
                await _assert(bus, order)
        except BusUnavailable:
            continue


async def _assert(bus: Bus, order: NodeDesired) -> None:
    key = desired_key(order.node)
    body = await bus.get(DESIRED_BUCKET, key)
    if body is not None and not _must_replace(body, order):
        return
    log.warning("desired state differs from the truth, putting it right", node=order.node, generation=order.generation)
    await bus.put(DESIRED_BUCKET, key, desired.encode(order))


def _must_replace(body: bytes, order: NodeDesired) -> bool:
    """Whether what the bus has is unreadable, older, or another order under the same fence."""
    try:
        there = desired.decode(body)
    except desired.UnreadableOrder:
        return True
    if there.fence == order.fence:
        return there.placement != order.placement
    # A newer one is on its way to the next reading of the state, unless its epoch was never granted.
    return there.fence < order.fence
