"""Durable publishing: events are committed to the spool first, and relays bring them to the bus."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from holdfast.bus import Bus, Message, event_message
from holdfast.daemon.relay import Relay
from holdfast.events import Event, Metric
from holdfast.orders.node import NodeOrder
from holdfast_agent.files.spool import Lane, Spool


class Publisher:
    """Publishes the node's events, in one transaction with what the agent remembers about them."""

    def __init__(self, spool: Spool, node: str) -> None:
        self._spool = spool
        self._node = node
        self._outboxes = {lane: spool.outbox(lane) for lane in Lane}
        self._relays: list[Relay] = []

    def publish(self, *events: Event, memory: Mapping[str, bytes] | None = None) -> None:
        """Publish events. Metrics take a lane of their own, so that they never delay evidence."""
        lane = Lane.MEASUREMENTS if all(isinstance(event, Metric) for event in events) else Lane.EVIDENCE
        self._spool.commit([event_message(event) for event in events], memory, lane)
        self.wake()

    def commit(self, messages: list[Message], memory: Mapping[str, bytes] | None = None) -> None:
        """Publish messages as evidence."""
        self._spool.commit(messages, memory)
        self.wake()

    def wake(self) -> None:
        """Relay what was committed to the spool."""
        for relay in self._relays:
            relay.wake()

    def start_relays(self, bus: Bus, group: asyncio.TaskGroup, obeyed: Callable[[], NodeOrder | None]) -> None:
        """Publish until the group ends. `obeyed` returns the newest order that the node has obeyed."""
        for lane, outbox in self._outboxes.items():
            relay = Relay(outbox, bus, source=f"agent/{self._node}", node=self._node, obeyed=obeyed)
            self._relays.append(relay)
            group.create_task(relay.run(), name=f"relay {lane.name.lower()}")

    async def until_empty(self) -> None:
        """Wait until the bus has stored every message."""
        self.wake()
        for outbox in self._outboxes.values():
            await outbox.until_empty()
