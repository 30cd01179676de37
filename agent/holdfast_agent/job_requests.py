"""What the ranks of a job are asked for on all its nodes, under a key of the job: traces, tests of slow jobs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import datetime
from typing import Protocol, TypeVar

import structlog

from holdfast.bus import Bus
from holdfast.orders.node import UnreadableOrder
from holdfast.subjects import DESIRED_BUCKET
from holdfast_agent.plan.node_state import Crew

log = structlog.get_logger(__name__)


class Asked(Protocol):
    """Of the ranks of one generation, and of no use after `until`."""

    @property
    def job(self) -> str: ...
    @property
    def generation(self) -> int: ...
    @property
    def until(self) -> datetime: ...


T = TypeVar("T", bound=Asked)


async def asked(
    bus: Bus, keys: str, decode: Callable[[bytes], T], crew: Callable[[], Crew | None], now: Callable[[], datetime]
) -> AsyncIterator[tuple[T, Crew]]:
    """What the crew of this node is asked for, for ever; the same may come again. What cannot be read is logged."""
    async for update in bus.watch(DESIRED_BUCKET, keys):
        if update.body is None:
            continue
        try:
            wanted = decode(update.body)
        except UnreadableOrder as error:
            log.warning("what the ranks of a job are asked for cannot be read", key=update.key, error=str(error))
            continue
        present = crew()
        if present is None or not present.trains or not present.pids or wanted.until <= now():
            continue
        if (present.order.job, present.order.generation) == (wanted.job, wanted.generation):
            yield wanted, present
