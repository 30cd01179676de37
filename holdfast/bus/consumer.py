"""Durable consumers on a NATS link.

They are push consumers. A pull consumer costs a request for every batch, or a standing one to renew; push delivers
the moment a message is stored, and `max_ack_pending` bounds what is under way. It also hands over at once: a durable
consumer that gets a new deliver subject redelivers everything unsettled immediately, so a process that replaces a
killed one does not wait for `ack_wait` (measured: 1 ms).
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from holdfast.bus import BusError
from holdfast.bus.link import ApiRefusal, Inflow, Link
from holdfast.bus.streams import NS, StreamMissing

ACK_WAIT_S = 30
"""A message neither settled nor handed over to a new process is delivered again after this."""
IN_FLIGHT_MAX = 1000
"""A consumer holds at most this many unsettled messages."""
HEARTBEAT_S = 4
SILENCE_S = 2.5 * HEARTBEAT_S
"""Without any heartbeat for this long the consumer is gone (deleted, perhaps with its stream): create it again."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_STREAM_NOT_FOUND = 10059
_CONSUMER_NOT_FOUND = 10014
_CONSUMER_IN_USE = (10013, 10148)


class _AckFloor(msgspec.Struct, frozen=True):
    stream_seq: int = 0


class _ConsumerAnswer(msgspec.Struct, frozen=True):
    config: dict[str, Any] = {}
    push_bound: bool = False
    ack_floor: _AckFloor = _AckFloor()


class _Deleted(msgspec.Struct, frozen=True):
    success: bool = False


def deliveries_of(reply: str) -> int:
    """Return the number of deliveries from the subject for the acknowledgement (ADR-15, with or without domain)."""
    tokens = reply.split(".")
    return int(tokens[4] if len(tokens) == 9 else tokens[6])


def stored_at_of(reply: str) -> datetime:
    """Return the time at which the stream stored a message, from the same subject."""
    tokens = reply.split(".")
    nanoseconds = int(tokens[7] if len(tokens) == 9 else tokens[9])
    return _EPOCH + timedelta(microseconds=nanoseconds // 1000)


async def attach_consumer(link: Link, stream: str, consumer: str, filters: list[str]) -> Inflow:
    """Receive from a durable consumer, created when absent; unsettled messages are delivered again at once.

    Raises StreamMissing or BusUnavailable if it cannot now, BusError if the server refuses this consumer for good.
    """
    inbox = link.new_inbox()
    config = {
        "name": consumer,
        "durable_name": consumer,
        "deliver_policy": "all",
        "ack_policy": "explicit",
        "ack_wait": ACK_WAIT_S * NS,
        "max_deliver": -1,
        "max_ack_pending": IN_FLIGHT_MAX,
        "filter_subjects": filters,
        "deliver_subject": inbox,
        "idle_heartbeat": HEARTBEAT_S * NS,
        # Bounds the bytes under way too: the server cuts off a client that lags by its `max_pending`.
        "flow_control": True,
    }
    inflow = await link.subscribe(inbox)
    try:
        await _create(link, stream, consumer, config)
    except _BoundElsewhere as bound:
        # The other end may be a dead connection that the server has not noticed yet, and noticing can take minutes.
        # Listening on the same subject loses nothing; should the other end live, both handle everything, harmlessly.
        await inflow.close()
        return await link.subscribe(bound.deliver_subject)
    except BaseException:
        await inflow.close()
        raise
    return inflow


class _BoundElsewhere(Exception):
    def __init__(self, deliver_subject: str) -> None:
        super().__init__(deliver_subject)
        self.deliver_subject = deliver_subject


async def _create(link: Link, stream: str, consumer: str, config: dict[str, Any]) -> None:
    request = f"CONSUMER.CREATE.{stream}.{consumer}"
    try:
        await link.api(request, {"stream_name": stream, "config": config}, _ConsumerAnswer)
    except ApiRefusal as refusal:
        if refusal.error.err_code == _STREAM_NOT_FOUND:
            raise StreamMissing(f"stream {stream} does not exist at {link.address}") from refusal
        if refusal.error.err_code not in _CONSUMER_IN_USE:
            raise BusError(f"consumer {consumer} of {stream} is refused: {refusal.error.description}") from refusal
        present = await link.api(f"CONSUMER.INFO.{stream}.{consumer}", {}, _ConsumerAnswer)
        if present.push_bound:
            raise _BoundElsewhere(present.config["deliver_subject"]) from refusal
        # It was created with other filters or limits, by an earlier version of its service.
        await link.api(request, {"stream_name": stream, "config": config, "action": "update"}, _ConsumerAnswer)


async def settled_up_to(link: Link, stream: str, consumer: str) -> int:
    """Return the position up to which a durable consumer has settled all; 0 if there is no such consumer or stream.

    Raises BusUnavailable without an answer, BusError if the server refuses.
    """
    try:
        answer = await link.api(f"CONSUMER.INFO.{stream}.{consumer}", {}, _ConsumerAnswer)
    except ApiRefusal as refusal:
        if refusal.error.err_code in (_STREAM_NOT_FOUND, _CONSUMER_NOT_FOUND):
            return 0
        raise
    return answer.ack_floor.stream_seq


async def delete_consumer(link: Link, stream: str, consumer: str) -> None:
    """Delete a durable consumer, if it is there. Raises BusUnavailable without an answer, BusError if refused."""
    try:
        await link.api(f"CONSUMER.DELETE.{stream}.{consumer}", {}, _Deleted)
    except ApiRefusal as refusal:
        if refusal.error.err_code not in (_STREAM_NOT_FOUND, _CONSUMER_NOT_FOUND):
            raise
