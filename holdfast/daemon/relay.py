"""The relay from outbox to bus: messages of a transaction are published until the bus has them."""

from __future__ import annotations

import asyncio

import structlog

from holdfast.bus import Bus, BusError, BusUnavailable, Message
from holdfast.clock import Now, system_now
from holdfast.daemon.dead_letters import UnhandledMessage, rejection
from holdfast.store import Outbox, StoreUnavailable

BATCH_MAX = 500
POLL_S = 5.0
"""Delay of a message without a wake-up: one whose commit seemed to have failed and had not."""
RETRY_MIN_S = 0.05
RETRY_MAX_S = 0.5
"""Limit of the pause between tries; a try without a connection costs nothing."""

log = structlog.get_logger(__name__)


class Relay:
    """Publishes one service's outbox in order. One relay at a time may serve an outbox, or the order is lost.

    A crash between publishing and noting it publishes again, under the same message id: the bus and every inbox drop
    the repetition. A message that the bus refuses for good goes to the dead letters, shortened if necessary: it must
    not block later messages, now and at every restart.
    """

    def __init__(self, outbox: Outbox, bus: Bus, *, now: Now = system_now) -> None:
        self._outbox = outbox
        self._bus = bus
        self._now = now
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """Publish new messages now."""
        self._woken.set()

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
            try:
                async with asyncio.timeout(POLL_S):
                    await self._woken.wait()
            except TimeoutError:
                continue

    async def publish_pending(self) -> int:
        """Publish one batch and return its number of messages; raises BusError as `run` does.

        After BusUnavailable or StoreUnavailable some are not published, or not marked as published; call again.
        """
        pending = await self._outbox.pending(BATCH_MAX)
        if pending:
            messages = [message for _, message in pending]
            try:
                await self._bus.publish_all(messages)
            except BusUnavailable:
                raise
            except BusError:
                await self._publish_singly(messages)
            await self._outbox.published([position for position, _ in pending])
        return len(pending)

    async def _publish_singly(self, messages: list[Message]) -> None:
        """Publish each message alone to find the refused one; ids make repetitions harmless."""
        for message in messages:
            try:
                await self._bus.publish(message)
            except BusUnavailable:
                raise
            except BusError as error:
                log.error("the bus refuses a message", id=message.id, subject=message.subject, error=str(error))
                unhandled = UnhandledMessage(
                    consumer="relay",
                    subject=message.subject,
                    body=message.body,
                    error=str(error),
                    message_id=message.id,
                )
                await self._bus.publish_all(list(rejection(unhandled, self._now(), self._bus.message_bytes_max)))
