"""Orders that this node carries out: those under its own key, and those to all nodes that run a job.

Only what the service that writes such orders has signed for this key is passed on (`holdfast.orders.signatures`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import datetime
from typing import TypeVar

import structlog

from holdfast.bus import Bus, KeyUpdate
from holdfast.orders.backup import BackupOrder
from holdfast.orders.base import Order, UnreadableOrder
from holdfast.orders.code import CodeOrder
from holdfast.orders.node import NodeOrder
from holdfast.orders.signatures import OrderKeys, SignedOrder
from holdfast.orders.slow import SlowOrder
from holdfast.orders.trace import TraceOrder
from holdfast_agent.plan.node_state import Crew

log = structlog.get_logger(__name__)

N = TypeVar("N", NodeOrder, BackupOrder)
J = TypeVar("J", SlowOrder, TraceOrder, CodeOrder)
C = TypeVar("C", SlowOrder, TraceOrder)
T = TypeVar("T", bound=Order)

Reject = Callable[[str, KeyUpdate, str], None]
"""Moves the value of a key of this bucket to the dead letters, with the reason."""


class OrderReader:
    """The orders of a bus that is connected later; `reject` gets those that are forged or unreadable."""

    def __init__(self, node: str, keys: OrderKeys, reject: Reject) -> None:
        self._node = node
        self._keys = keys
        self._reject = reject

    async def for_node(self, bus: Bus, kind: type[N]) -> AsyncIterator[SignedOrder[N]]:
        """Yield each order of this kind to this node."""
        async for update in bus.watch(kind.bucket(), kind.key_of(self._node)):
            if (signed := self._read(kind, update)) is not None:
                yield signed

    async def for_jobs(self, bus: Bus, kind: type[J], crew: Callable[[], Crew | None]) -> AsyncIterator[J]:
        """Yield each order of this kind, of all jobs. Every node reads them: the one that runs the job rejects."""
        async for update in bus.watch(kind.bucket(), kind.key_of("*")):
            present = crew()
            concerned = present is not None and update.key == kind.key_of(present.order.job or "")
            if (signed := self._read(kind, update, rejects=concerned)) is not None:
                yield signed.order

    async def for_crew(
        self, bus: Bus, kind: type[C], crew: Callable[[], Crew | None], now: Callable[[], datetime]
    ) -> AsyncIterator[tuple[C, Crew]]:
        """Yield each order of this kind for this node's crew, perhaps twice; expired ones are ignored."""
        async for wanted in self.for_jobs(bus, kind, crew):
            present = crew()
            if present is None or not present.trains or not present.pids or wanted.until <= now():
                continue
            if (present.order.job, present.order.generation) == (wanted.job, wanted.generation):
                yield wanted, present

    def _read(self, kind: type[T], update: KeyUpdate, *, rejects: bool = True) -> SignedOrder[T] | None:
        if update.body is None:
            return None
        try:
            return self._keys.read(kind, update.key, update.body)
        except UnreadableOrder as error:
            if rejects:
                self._reject(kind.bucket(), update, str(error))
            else:
                log.warning("an order is refused", key=update.key, error=str(error))
            return None
