"""The relay from outbox to bus: messages of a transaction are published until the bus has them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta

import structlog

from holdfast.bus import Bus, BusError, BusUnavailable, Message, StreamPosition, event_message
from holdfast.clock import Now, system_now
from holdfast.daemon import lost_messages
from holdfast.daemon.dead_letters import UnhandledMessage, rejection
from holdfast.orders.node import NodeOrder
from holdfast.store import Outbox, StoreUnavailable
from holdfast.subjects import DEAD_LETTER_STREAM, STREAMS

BATCH_MAX = 500
POLL_S = 5.0
"""Delay of a message without a wake-up: one whose commit seemed to have failed and had not."""
RETRY_MIN_S = 0.05
RETRY_MAX_S = 0.5
"""Limit of the pause between tries; a try without a connection costs nothing."""
COMPARE_EVERY = timedelta(minutes=1)
"""A cluster of servers can lose messages without an end of the connection."""

# Orders are left out: a key has its newest value only, and `order_repair` compares it.
_KEEPING = frozenset(stream.name for stream in STREAMS)
_IN_MEMORY = frozenset(stream.name for stream in STREAMS if stream.in_memory)

log = structlog.get_logger(__name__)


class Relay:
    """Publishes one service's outbox in order. One relay at a time may serve an outbox, or the order is lost.

    A crash between publishing and noting it publishes again, under the same message id: the bus and every inbox drop
    the repetition. A message that the bus refuses for good goes to the dead letters, shortened if necessary: it must
    not block later messages, now and at every restart.

    Messages that the bus lost after they were published are published again: after each reconnection, before any
    other message.
    """

    def __init__(
        self,
        outbox: Outbox,
        bus: Bus,
        *,
        source: str = "relay",
        node: str | None = None,
        obeyed: Callable[[], NodeOrder | None] = lambda: None,
        now: Now = system_now,
    ) -> None:
        """`source` and `node`: the process that owns the outbox, for the report of a loss; `obeyed`: the newest order
        that the node has obeyed.
        """
        self._outbox = outbox
        self._bus = bus
        self._source = source
        self._node = node
        self._obeyed = obeyed
        # Nodes may not read dead letters.
        self._compared = _KEEPING - {DEAD_LETTER_STREAM} if node else _KEEPING
        self._now = now
        self._compared_at: datetime | None = None
        # Start of the connection on which the streams were last compared.
        self._compared_on: datetime | None = None
        self._woken = asyncio.Event()
        self._is_done = asyncio.Event()

    def wake(self) -> None:
        """Publish new messages now."""
        self._woken.set()
        self._is_done.clear()

    async def until_published(self, limit_s: float) -> None:
        """Wait until the bus has the messages that `wake` announced, or for this time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._is_done.wait()

    async def run(self) -> None:
        """Publish until cancelled; raises BusError when the bus refuses even the dead letter of a refused message."""
        pause_s = RETRY_MIN_S
        while True:
            self._woken.clear()
            try:
                while await self.publish_pending() == BATCH_MAX:
                    continue
            except (BusUnavailable, StoreUnavailable) as error:
                log.warning("outbox not published, trying again", reason=str(error), pause_s=pause_s)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, RETRY_MAX_S)
                continue
            pause_s = RETRY_MIN_S
            if not self._woken.is_set():
                self._is_done.set()
            try:
                async with asyncio.timeout(POLL_S):
                    await self._woken.wait()
            except TimeoutError:
                continue

    async def publish_pending(self) -> int:
        """Publish one batch and return its number of messages; raises BusError as `run` does.

        After BusUnavailable or StoreUnavailable some are not published, or not marked as published; call again.
        """
        connection = self._bus.connected_since
        if connection is not None and self._must_compare(connection):
            await self._recover_lost()
            self._compared_at, self._compared_on = self._now(), connection
        pending = await self._outbox.pending(BATCH_MAX)
        if pending:
            messages = [message for _, message in pending]
            stored: list[StreamPosition | None]
            try:
                stored = [*await self._bus.publish_all(messages)]
            except BusUnavailable:
                raise
            except BusError:
                stored = await self._publish_singly(messages)
            if self._bus.connected_since != connection:
                # Their new positions would hide that the bus lost earlier messages.
                raise BusUnavailable("the connection changed while messages were published")
            await self._outbox.published(
                {
                    position: place if place and place.stream in self._compared else None
                    for (position, _), place in zip(pending, stored, strict=True)
                }
            )
        return len(pending)

    def _must_compare(self, connection: datetime) -> bool:
        return (
            self._compared_at is None
            or connection != self._compared_on
            or self._now() - self._compared_at >= COMPARE_EVERY
        )

    async def _recover_lost(self) -> None:
        """Make pending again what the bus lost; report it, unless it was kept in memory only."""
        for lost in await lost_messages.first_lost(self._bus, self._outbox):
            stream = lost.stored.stream
            if stream not in _IN_MEMORY:
                # Before what is published again: the controller's record may be older than that as well.
                went_back = lost_messages.report(lost, self._source, self._node, self._obeyed(), self._now())
                await self._bus.publish(event_message(went_back))
            count = await self._outbox.publish_again(lost.stored)
            log.warning(
                "the bus lost published messages, publishing them again",
                stream=stream,
                sequence=lost.stored.sequence,
                messages=count,
            )

    async def _publish_singly(self, messages: list[Message]) -> list[StreamPosition | None]:
        """Publish each message alone to find the refused one; ids make repetitions harmless."""
        stored: list[StreamPosition | None] = []
        for message in messages:
            try:
                stored += await self._bus.publish_all([message])
            except BusUnavailable:
                raise
            except BusError as error:
                log.error("the bus refuses a message", id=message.id, subject=message.subject, error=str(error))
                unhandled = UnhandledMessage(
                    consumer="relay",
                    node=self._node,
                    subject=message.subject,
                    body=message.body,
                    error=str(error),
                    message_id=message.id,
                )
                await self._bus.publish_all(list(rejection(unhandled, self._now(), self._bus.message_bytes_max)))
                stored.append(None)
        return stored
