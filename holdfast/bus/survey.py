"""Streams and consumers of a NATS server, read without changing them."""

from __future__ import annotations

from datetime import datetime

import msgspec

from holdfast.bus.link import ApiRefusal, Link

CONSUMERS_READ_MAX = 256
"""One page of the answer; services have a handful."""

_STREAM_NOT_FOUND = 10059


class StreamSurvey(msgspec.Struct, frozen=True, kw_only=True):
    """A stream, at the time `at` of the server's clock."""

    name: str
    messages: int
    nbytes: int
    first_sequence: int
    last_sequence: int
    at: datetime


class ConsumerSurvey(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer of a stream."""

    stream: str
    name: str
    waiting: int
    """Messages that it has not acknowledged, delivered or not."""
    acknowledged: int
    """Sequence up to which it has acknowledged everything."""
    last_at: datetime
    """Time of the consumer's last acknowledgement, or of its creation."""


class _StreamState(msgspec.Struct, frozen=True):
    messages: int
    bytes: int
    first_seq: int
    last_seq: int


class _StreamInfo(msgspec.Struct, frozen=True):
    state: _StreamState
    ts: datetime


class _AckFloor(msgspec.Struct, frozen=True):
    stream_seq: int = 0
    last_active: datetime | None = None


class _ConsumerInfo(msgspec.Struct, frozen=True):
    name: str
    created: datetime
    ack_floor: _AckFloor = _AckFloor()
    num_pending: int = 0
    num_ack_pending: int = 0


class _ConsumerList(msgspec.Struct, frozen=True):
    consumers: list[_ConsumerInfo] | None = None


async def survey_stream(link: Link, stream: str) -> StreamSurvey | None:
    """Return a stream's state; None if there is none of this name. Raises BusUnavailable, or BusError if refused."""
    try:
        info = await link.api(f"STREAM.INFO.{stream}", {}, _StreamInfo)
    except ApiRefusal as refusal:
        if refusal.error.err_code == _STREAM_NOT_FOUND:
            return None
        raise
    state = info.state
    return StreamSurvey(
        name=stream,
        messages=state.messages,
        nbytes=state.bytes,
        first_sequence=state.first_seq,
        last_sequence=state.last_seq,
        at=info.ts,
    )


async def survey_consumers(link: Link, stream: str) -> list[ConsumerSurvey]:
    """Return the consumers of a stream, one page of them. Raises BusUnavailable, or BusError if refused."""
    found = await link.api(f"CONSUMER.LIST.{stream}", {}, _ConsumerList)
    return [
        ConsumerSurvey(
            stream=stream,
            name=it.name,
            waiting=it.num_pending + it.num_ack_pending,
            acknowledged=it.ack_floor.stream_seq,
            last_at=it.ack_floor.last_active or it.created,
        )
        for it in (found.consumers or [])[:CONSUMERS_READ_MAX]
    ]
