"""Orders under a key of a job, for the ranks on all its nodes: traces, profiles and tests of slow jobs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import datetime
from typing import TypeVar

import structlog

from holdfast.bus import Bus
from holdfast.orders.base import UnreadableOrder
from holdfast.orders.slow import SlowOrder
from holdfast.orders.trace import TraceOrder
from holdfast.subjects import JOBS_BUCKET
from holdfast_agent.plan.node_state import Crew

log = structlog.get_logger(__name__)


T = TypeVar("T", SlowOrder, TraceOrder)


async def orders_for_crew(
    bus: Bus, kind: type[T], crew: Callable[[], Crew | None], now: Callable[[], datetime]
) -> AsyncIterator[tuple[T, Crew]]:
    """Yield each order of this kind for this node's crew, perhaps twice. Log unreadable orders, ignore expired ones."""
    async for update in bus.watch(JOBS_BUCKET, kind.key_of("*")):
        if update.body is None:
            continue
        try:
            wanted = kind.decode(update.body)
        except UnreadableOrder as error:
            log.warning("what the ranks of a job are asked for cannot be read", key=update.key, error=str(error))
            continue
        present = crew()
        if present is None or not present.trains or not present.pids or wanted.until <= now():
            continue
        if (present.order.job, present.order.generation) == (wanted.job, wanted.generation):
            yield wanted, present
