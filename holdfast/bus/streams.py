"""Streams and key buckets on a NATS server, made to match `holdfast.subjects`."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from holdfast.bus import BusError, BusUnavailable, Message, NoResponder, StreamPosition, StreamState
from holdfast.bus.link import NO_MESSAGE, ApiRefusal, Link, raise_refusal, status_of
from holdfast.bus.nats_py import Msg
from holdfast.events import BODY_BYTES_MAX
from holdfast.subjects import (
    CODE_BUCKET,
    CODE_BYTES_MAX,
    CODE_KEPT_S,
    DESIRED_KEPT_S,
    KEY_BUCKETS,
    STREAMS,
    StreamSpec,
    bucket_stream,
    kv_subject,
    object_stream,
    stored_subject,
    stream_info_subject,
)

NS = 1_000_000_000
DUPLICATE_WINDOW_S = 120
"""A repeated publish of the same message id is dropped within this time."""

_SHARED = ("EVIDENCE", "DECISIONS", "METRICS")
"""Streams that nodes publish into as well, and may read."""
_NAME_IN_USE = 10058
_NO_ROOM = (10023, 10028, 10047)
_KEY_BYTES_MAX = 1 << 30
_MESSAGE_BYTES_MAX = BODY_BYTES_MAX + (64 << 10)
"""An event and its headers. Longer ones cannot be read, and a node could fill a stream with few of them."""


def stream_config(spec: StreamSpec) -> dict[str, Any]:
    """Return the configuration of a stream as JetStream's API takes it."""
    return {
        "name": spec.name,
        "subjects": list(spec.subjects),
        "retention": "limits",
        "discard": "old",
        "storage": "memory" if spec.in_memory else "file",
        "max_age": spec.keep_s * NS,
        "max_bytes": spec.bytes_max,
        **({"max_msg_size": _MESSAGE_BYTES_MAX} if spec.name in _SHARED else {}),
        "num_replicas": 1,
        "duplicate_window": DUPLICATE_WINDOW_S * NS,
        "allow_direct": True,
    }


def bucket_config(bucket: str) -> dict[str, Any]:
    """Return the configuration of a key bucket (NATS ADR-8): one value per key, on disk, for some days."""
    return {
        "name": bucket_stream(bucket),
        "subjects": [kv_subject(bucket, ">")],
        "retention": "limits",
        "discard": "new",
        "storage": "file",
        "max_msgs_per_subject": 1,
        "max_age": DESIRED_KEPT_S * NS,
        "max_bytes": _KEY_BYTES_MAX,
        "num_replicas": 1,
        "duplicate_window": DUPLICATE_WINDOW_S * NS,
        "allow_direct": True,
        "allow_rollup_hdrs": True,
        "deny_delete": True,
        # Watches receive new values by this: a consumer's deliver subject could be any that its maker names.
        "republish": {"src": kv_subject(bucket, ">"), "dest": stored_subject(bucket, ">")},
    }


def object_bucket_config(bucket: str, *, keep_s: int, bytes_max: int) -> dict[str, Any]:
    """Return the configuration of a bucket of objects (NATS ADR-20); the oldest objects make room for new ones."""
    return {
        "name": object_stream(bucket),
        "subjects": [f"$O.{bucket}.C.>", f"$O.{bucket}.M.>"],
        "retention": "limits",
        "discard": "old",
        "storage": "file",
        "compression": "s2",
        "max_age": keep_s * NS,
        "max_bytes": bytes_max,
        "num_replicas": 1,
        "duplicate_window": DUPLICATE_WINDOW_S * NS,
        "allow_direct": True,
        "allow_rollup_hdrs": True,
    }


class StreamMissing(BusUnavailable):
    """The stream does not exist; it must be created first."""


class _StreamAnswer(msgspec.Struct, frozen=True):
    config: dict[str, Any] = {}


class _StreamCounts(msgspec.Struct, frozen=True):
    messages: int
    first_seq: int
    last_seq: int


class _StreamInfo(msgspec.Struct, frozen=True):
    state: _StreamCounts


async def ensure_stream(link: Link, config: dict[str, Any]) -> None:
    """Create the stream, or bring an existing one to this configuration.

    Raises BusUnavailable when JetStream is not up or has no room now, BusError when it refuses, with what to change.
    """
    name = config["name"]
    try:
        await link.api(f"STREAM.CREATE.{name}", config, _StreamAnswer)
    except ApiRefusal as refusal:
        if refusal.error.err_code in _NO_ROOM:
            limit = "max_memory_store" if config["storage"] == "memory" else "max_file_store"
            raise BusError(
                f"stream {name} does not fit at {link.address} ({refusal.error.description}): it reserves "
                f"{config['max_bytes'] >> 20} MiB of {config['storage']}; "
                f"set {limit} in the jetstream section of the server's configuration "
                "(its default is 75 % of what was free on the server's machine at its start)"
            ) from refusal
        if refusal.error.err_code != _NAME_IN_USE:
            raise BusError(f"stream {name} cannot be made at {link.address}: {refusal.error.description}") from refusal
        await _update(link, config)


async def _update(link: Link, config: dict[str, Any]) -> None:
    name = config["name"]
    try:
        await link.api(f"STREAM.UPDATE.{name}", config, _StreamAnswer)
    except ApiRefusal as refusal:
        raise BusError(
            f"stream {name} at {link.address} was set up differently and cannot be changed "
            f"({refusal.error.description}): delete it with `nats stream rm {name}` to have it created again"
        ) from refusal


async def ensure_streams(link: Link) -> None:
    """Make all streams and buckets exist as declared; harmless when repeated or done by several.

    Raises BusUnavailable while JetStream is not up, BusError when the server refuses for good.
    """
    code = object_bucket_config(CODE_BUCKET, keep_s=CODE_KEPT_S, bytes_max=CODE_BYTES_MAX)
    for config in [*(stream_config(spec) for spec in STREAMS), *map(bucket_config, KEY_BUCKETS), code]:
        await ensure_stream(link, config)


async def stream_state(link: Link, stream: str) -> StreamState:
    """Return the number of messages in a stream and its newest message, None if that expired in between.

    Raises BusUnavailable without an answer, BusError when there is no such stream.
    """
    counts = (await link.api(f"STREAM.INFO.{stream}", {}, _StreamInfo)).state
    if not counts.messages:
        return StreamState(messages=0)
    newest = await message_at(link, stream, counts.last_seq)
    if newest is None:
        return StreamState(messages=counts.messages)
    at = msgspec.convert(newest.headers.get("Nats-Time-Stamp"), datetime | None)
    return StreamState(messages=counts.messages, newest=newest, newest_at=at)


class Stored(msgspec.Struct, frozen=True):
    """A message of a stream, and the time at which it was stored."""

    message: Message
    at: datetime


async def newest_on(link: Link, stream: str, subject: str) -> Stored | None:
    """Return the newest message on a subject; None if there is none. Raises BusUnavailable without an answer."""
    found = await _read(link, stream, f".{subject}", b"")
    if found is None:
        return None
    message = _message(found)
    return Stored(message, msgspec.convert(message.headers.get("Nats-Time-Stamp"), datetime))


async def message_at(link: Link, stream: str, sequence: int) -> Message | None:
    """Return the message at this position; None if it expired. Raises BusUnavailable without an answer."""
    found = await _message_at(link, stream, sequence)
    return None if found is None else _message(found)


def _message(found: Msg) -> Message:
    headers = dict(found.headers or {})
    subject = headers.get("Nats-Subject", "")
    return Message(id=headers.get("Nats-Msg-Id", ""), subject=subject, body=found.data, headers=headers)


async def message_lost(link: Link, position: StreamPosition, message_id: str) -> bool:
    """Return True if the stream has another message at this position, or none although none expired there.

    Raises BusUnavailable without an answer.
    """
    found = await _message_at(link, position.stream, position.sequence)
    if found is not None:
        there = (found.headers or {}).get("Nats-Msg-Id", "")
        # What follows an id in it tells the message from one of another user under the same id.
        return there != message_id and not there.startswith(f"{message_id} ")
    try:
        return (await _counts(link, position.stream)).first_seq <= position.sequence
    except ApiRefusal as refusal:
        raise BusUnavailable(str(refusal)) from refusal


async def is_on_another_subject(link: Link, position: StreamPosition, subject: str) -> bool:
    """Return True if the message at this position was published on another subject; raises BusUnavailable."""
    if position.stream not in _SHARED:
        return False
    found = await _message_at(link, position.stream, position.sequence)
    return found is not None and (found.headers or {}).get("Nats-Subject") != subject


async def _counts(link: Link, stream: str) -> _StreamCounts:
    try:
        answer = (await link.answer(stream_info_subject(stream), b"")).data
    except NoResponder:
        return (await link.api(f"STREAM.INFO.{stream}", {}, _StreamInfo)).state
    raise_refusal(f"STREAM.INFO.{stream}", answer)
    return msgspec.json.decode(answer, type=_StreamInfo).state


async def _message_at(link: Link, stream: str, sequence: int) -> Msg | None:
    return await _read(link, stream, "", msgspec.json.encode({"seq": sequence}))


async def _read(link: Link, stream: str, suffix: str, request: bytes) -> Msg | None:
    try:
        found = await link.answer(f"$JS.API.DIRECT.GET.{stream}{suffix}", request)
    except NoResponder:
        raise BusUnavailable(f"stream {stream} does not answer at {link.address}") from None
    return None if status_of(found) in NO_MESSAGE else found
