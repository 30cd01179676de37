"""The shell: receive from all streams, write in batches, acknowledge after the commit."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import date, timedelta
from functools import partial
from typing import TypeVar

import msgspec
import structlog

from holdfast.bus import Bus, BusUnavailable, Delivery, Message
from holdfast.clock import Now
from holdfast.daemon.dead_letters import UnhandledMessage, rejection
from holdfast.daemon.retrying import until_available
from holdfast.events import EventClass, UnreadableEvent
from holdfast.store import StoreUnavailable
from holdfast.subjects import ROOT
from holdfast_historian.buffer import BatchLimits, Buffer
from holdfast_historian.partitions import PartitionPolicy, days_ahead, expired, missing, oldest_kept
from holdfast_historian.rows import EventRow, canonical_row, row_of
from holdfast_historian.store import HistorianStore, RowsRefused

CONSUMER = "historian"
STREAM_CLASSES = {
    "EVIDENCE": (EventClass.EVIDENCE,),
    "DECISIONS": (EventClass.FINDING, EventClass.DECISION, EventClass.ACTION),
    "METRICS": (EventClass.METRIC,),
}
HOUSEKEEPING_S = 600.0

FOREIGN_KEPT = timedelta(days=30)
"""Time for which events of nodes that do not belong to their job are kept."""

READS_CHECKED_S = 5.0
READ_TRANSACTION_MAX = timedelta(seconds=60)
"""Twice the reader's own `statement_timeout`, which it can lift."""
READ_IDLE_MAX = timedelta(minutes=11)
"""More than the reader's own `idle_session_timeout`."""

T = TypeVar("T")
log = structlog.get_logger()


class Received(msgspec.Struct, frozen=True):
    """A row, with the delivery to acknowledge once the row is committed."""

    row: EventRow
    delivery: Delivery


class Historian:
    """The recorder: each event is written once, however often it is delivered and whatever is down meanwhile."""

    def __init__(
        self,
        bus: Bus,
        store: HistorianStore,
        now: Now,
        policy: PartitionPolicy | None = None,
    ) -> None:
        self._bus = bus
        self._store = store
        self._now = now
        self._policy = policy or PartitionPolicy()
        self._buffer: Buffer[Received] = Buffer(BatchLimits())
        self._days: frozenset[date] = frozenset()

    async def run(self) -> None:
        """Record until cancelled; raise NotMigrated if the database lacks the historian's tables."""
        await self._patiently(self._store.create_default_partition)
        await self.keep_house()
        async with asyncio.TaskGroup() as tasks:
            for stream in STREAM_CLASSES:
                tasks.create_task(self._receive(stream), name=f"receive {stream}")
            tasks.create_task(self._write(), name="write")
            tasks.create_task(self._keep_house(), name="keep house")
            tasks.create_task(self._limit_reads(), name="limit reads")

    async def keep_house(self) -> None:
        """Make the partitions of the next days; drop those that are too old."""
        self._days = await self._patiently(self._store.partitions)
        await self._ensure_partitions(set(days_ahead(self._now(), self._policy)))
        for day in expired(self._days, self._now(), self._policy):
            await self._patiently(partial(self._store.drop_partition, day))
            self._days -= {day}
            log.info("partition dropped", day=day.isoformat(), keep_days=self._policy.keep_days)
        await self._patiently(partial(self._store.prune_foreign_events, self._now() - FOREIGN_KEPT))
        oldest = oldest_kept(self._days, self._now(), self._policy)
        if oldest is not None:
            await self._patiently(partial(self._store.prune_default_partition, oldest))
            await self._patiently(partial(self._store.prune_job_nodes, oldest))

    async def _keep_house(self) -> None:
        while True:
            await asyncio.sleep(HOUSEKEEPING_S)
            await self.keep_house()

    async def _limit_reads(self) -> None:
        end_long_reads = partial(self._store.end_long_reads, READ_TRANSACTION_MAX, READ_IDLE_MAX)
        while True:
            if ended := await self._patiently(end_long_reads):
                log.warning(
                    "sessions of the reader ended", sessions=ended, transaction_max_s=READ_TRANSACTION_MAX.seconds
                )
            await asyncio.sleep(READS_CHECKED_S)

    async def _receive(self, stream: str) -> None:
        filters = [f"{ROOT}.{event_class}.>" for event_class in STREAM_CLASSES[stream]]
        await self._start_over_if_restored(stream)
        async for delivery in self._bus.consume(stream, CONSUMER, filters):
            try:
                row = row_of(delivery.subject, delivery.body)
            except UnreadableEvent as error:
                await self._reject(delivery, str(error))
            else:
                await self._buffer.put(Received(row, delivery), len(row.body))

    async def _start_over_if_restored(self, stream: str) -> None:
        """Receive the whole stream again if the record lacks what the bus counts as recorded.

        The database was restored from a backup then. Events that the backup has are not written twice.
        """
        newest = await until_available(partial(self._bus.last_settled, stream, CONSUMER), BusUnavailable, "bus")
        if newest is None:
            return
        try:
            row = row_of(newest.subject, newest.body)
        except UnreadableEvent:
            return  # it went to the dead letters
        if not await self._patiently(partial(self._store.has, row)):
            log.warning("the record lacks events that were recorded: receives the stream again", stream=stream)
            await until_available(partial(self._bus.start_over, stream, CONSUMER), BusUnavailable, "bus")

    async def _write(self) -> None:
        while True:
            batch = await self._buffer.batch()
            await self._ensure_partitions({received.row.at.date() for received in batch})
            await self._record(batch)

    async def _record(self, batch: list[Received]) -> None:
        try:
            await self._patiently(partial(self._store.record, [received.row for received in batch]))
        except RowsRefused as error:
            # One bad row refuses its whole batch: halve until it is alone.
            if len(batch) > 1:
                half = len(batch) // 2
                await self._record(batch[:half])
                await self._record(batch[half:])
            else:
                await self._record_rewritten(batch[0], str(error))
            return
        for received in batch:
            await _settle(received.delivery.ack)

    async def _record_rewritten(self, received: Received, refusal: str) -> None:
        try:
            row = canonical_row(received.delivery.subject, received.delivery.body)
            await self._patiently(partial(self._store.record, [row]))
        except (UnreadableEvent, RowsRefused):
            await self._reject(received.delivery, f"Postgres refuses this event: {refusal}")
        else:
            await _settle(received.delivery.ack)

    async def _reject(self, delivery: Delivery, error: str) -> None:
        log.error("message rejected", subject=delivery.subject, error=error, body_bytes=len(delivery.body))
        unhandled = UnhandledMessage(
            consumer=CONSUMER,
            subject=delivery.subject,
            body=delivery.body,
            error=error,
            message_id=delivery.headers.get("Nats-Msg-Id", ""),
            deliveries=delivery.deliveries,
        )
        for message in rejection(unhandled, self._now(), self._bus.message_bytes_max):
            await self._publish(message)
        await _settle(delivery.drop)

    async def _publish(self, message: Message) -> None:
        await until_available(partial(self._bus.publish, message), BusUnavailable, "bus")

    async def _ensure_partitions(self, days: set[date]) -> None:
        if days <= self._days:
            return
        for day in missing(days, self._days, self._now(), self._policy):
            await self._patiently(partial(self._store.create_partition, day))
            self._days |= {day}
            log.info("partition made", day=day.isoformat())

    async def _patiently(self, attempt: Callable[[], Awaitable[T]]) -> T:
        return await until_available(attempt, StoreUnavailable, "database")


async def _settle(settlement: Callable[[], Awaitable[None]]) -> None:
    try:
        await settlement()
    except BusUnavailable:
        # It is delivered again, and is recorded already.
        pass
