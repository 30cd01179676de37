"""Orders hold: what the bus has under a node's key is compared with the truth now and then, and put right.

The bucket of desired state can lose a value (a wiped bus) or get a wrong one (a hostile or mistaken put).
Agents refuse what they cannot read or what is older than what they know; this restores the true order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
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
            await assert_orders(bus, orders)
        except BusUnavailable:
            continue


async def assert_orders(bus: Bus, orders: Callable[[], list[NodeDesired]]) -> None:
    """Put right what differs now.

    Raises:
        BusUnavailable: some may not have been looked at.
    """
    bodies = {order.node: await bus.get(DESIRED_BUCKET, desired_key(order.node)) for order in orders()}
    # What holds is asked after what is there was read: decisions go on meanwhile.
    suspects = [
        order.node for order in orders() if order.node in bodies and correction(bodies[order.node], order) is not None
    ]
    for node in suspects:
        body = await bus.get(DESIRED_BUCKET, desired_key(node))
        truth = next((order for order in orders() if order.node == node), None)
        if truth is None or (right := correction(body, truth)) is None:
            continue
        if body is None:
            log.info("desired state is not on the bus any more, putting it there", node=node, fence=right.fence)
        else:
            log.warning("desired state differs from the truth, putting it right", node=node, fence=right.fence)
        await bus.put(DESIRED_BUCKET, desired_key(node), desired.encode(right))


def correction(body: bytes | None, truth: NodeDesired) -> NodeDesired | None:
    """What to put in the place of `body`, None if that is as it should be.

    The truth is never older than what was published of it: a higher fence on the bus was never given by the controller.
    """
    try:
        there = desired.decode(body) if body is not None else None
    except desired.UnreadableOrder:
        there = None
    if there is None or there.fence < truth.fence:
        return truth
    if there.fence > truth.fence:
        return msgspec.structs.replace(truth, supersedes=there.fence)
    return truth if there.placement != truth.placement else None
