"""Published messages that the bus lost afterwards, found by their positions in its streams.

A nats-server writes to the disk some seconds after it acknowledged, and its directory can be wiped or put back from an
older copy. Then a stream continues from an earlier position, so all messages from some position on are lost: others
have their numbers, or none. The relay publishes them again (docs/adr/0029-bus-went-back.md).
"""

from __future__ import annotations

from datetime import datetime

from holdfast.bus import Bus
from holdfast.events import BusWentBack
from holdfast.fresh_ids import uuid7
from holdfast.orders.node import NodeOrder
from holdfast.store import Outbox, Published


async def first_lost(bus: Bus, outbox: Outbox) -> list[Published]:
    """Return the first lost message of each stream that lost some; raises BusUnavailable or StoreUnavailable."""
    return [
        await _first_lost_in(bus, outbox, newest)
        for newest in await outbox.newest_published()
        if await bus.lost(newest.stored, newest.message_id)
    ]


async def _first_lost_in(bus: Bus, outbox: Outbox, newest: Published) -> Published:
    published = await outbox.published_in(newest.stored.stream)
    first, last = 0, len(published) - 1
    while first < last:
        middle = (first + last) // 2
        if await bus.lost(published[middle].stored, published[middle].message_id):
            last = middle
        else:
            first = middle + 1
    return published[first]


def report(lost: Published, source: str, node: str | None, obeyed: NodeOrder | None, now: datetime) -> BusWentBack:
    """Return the event that makes a loss visible to queries. `obeyed`: the newest order that the node has obeyed."""
    return BusWentBack(
        id=uuid7(),
        at=now,
        source=source,
        node=node,
        stream=lost.stored.stream,
        sequence=lost.stored.sequence,
        newest_job=obeyed.job if obeyed else None,
        newest_generation=obeyed.generation if obeyed else 0,
    )
