"""The row that records a message. Pure.

An accepted row must never break a query: views cast values from the body, and one value that Postgres cannot cast fails
the query over all events. msgspec and Postgres have different limits (integers of any size, offsets of a day, NUL), so
bodies with such values are rewritten with the value as msgspec understood it, or refused if there is none. Fractions
need no such care: views read them as numeric.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from holdfast import events
from holdfast.decoding import UNREADABLE
from holdfast.events import AnyEvent, UnreadableEvent
from holdfast.events.summaries import summary
from holdfast.subjects import event_subject

INTEGER_MAX = (1 << 53) - 1
"""The largest integer that every JSON reader gets exactly (RFC 7493); sums in queries stay far below 64 bits."""

UUID_CHARS = 36
SUMMARY_CHARS_MAX = 4000
NUL_STAND_IN = "\N{SYMBOL FOR NULL}"

# Three things to look for, cheap to find and cheap to be wrong about: a NUL; an integer of 16 digits or more; a moment
# with an offset, of which msgspec accepts more than Postgres. Classes of bytes are mapped onto one of each and found
# as plain substrings: ten times as fast as a regular expression, at tens of thousands of bodies a second.
_NUL = rb"\u0000"
_CLASSES = bytes.maketrans(b"0123456789-+,[ \t\r\n", b"0" * 10 + b"++" + b":" * 6)
_LONG_INTEGERS = (b":" + b"0" * 16, b"+" + b"0" * 16)
_OFFSETS = (b'0+00:00"', b'0+0000"')


class EventRow(NamedTuple):
    """One row of `historian.events`, in the order of its columns; ids are text, `body` is JSON for jsonb."""

    id: str
    at: datetime
    event_class: str
    type: str
    source: str
    job: str | None
    generation: int | None
    node: str | None
    cause: str | None
    incident: str | None
    body: bytes
    summary: str | None


def row_of(subject: str, body: bytes) -> EventRow:
    """Return the row of the event in `body`; raise UnreadableEvent if it is none, not of `subject`, or not storable."""
    if _is_suspicious(body):
        return canonical_row(subject, body)
    return _row(subject, events.decode(body), body)


def canonical_row(subject: str, body: bytes) -> EventRow:
    """Like `row_of`, with a rewritten body: known fields as understood, unknown ones as far as they are sound."""
    event = _storable(msgspec.to_builtins(events.decode(body), builtin_types=(datetime,)), "$")
    known = set(events.EVENT_TYPES[event["type"]].__struct_fields__) | {"type"}
    try:
        unknown = {name: value for name, value in msgspec.json.decode(body).items() if name not in known}
        event = _storable(unknown, "$") | event
    except UNREADABLE:
        # Unknown fields are dropped rather than the event.
        pass
    rewritten = msgspec.json.encode(event)
    return _row(subject, events.decode(rewritten), rewritten)


def _row(subject: str, event: AnyEvent, body: bytes) -> EventRow:
    if event_subject(event) != subject:
        raise UnreadableEvent(f"body says {event_subject(event)!r}, not the subject it came on")
    for name in (event.id, event.cause, event.incident):
        if name is not None and len(name) != UUID_CHARS:
            raise UnreadableEvent(f"{name!r} is no UUID in canonical form")
    return EventRow(
        id=event.id,
        at=_utc(event.at, "$.at"),
        event_class=event.event_class.value,
        type=event.type,
        source=event.source,
        job=event.job,
        generation=event.generation,
        node=event.node,
        cause=event.cause,
        incident=event.incident,
        body=body,
        summary=summary(event)[:SUMMARY_CHARS_MAX] or None,
    )


def _is_suspicious(body: bytes) -> bool:
    if _NUL in body:
        return True
    classes = body.translate(_CLASSES)
    return any(hint in classes for hint in _LONG_INTEGERS) or any(hint in classes for hint in _OFFSETS)


def _storable(value: Any, path: str) -> Any:
    if isinstance(value, str):
        return value.replace("\0", NUL_STAND_IN)
    if isinstance(value, dict):
        return {_storable(name, path): _storable(inner, f"{path}.{name}") for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_storable(inner, f"{path}[{place}]") for place, inner in enumerate(value)]
    if isinstance(value, int) and abs(value) > INTEGER_MAX:
        raise UnreadableEvent(
            f"an integer of {value.bit_length()} bits is beyond the exact ones (53 bits) - at `{path}`"
        )
    if isinstance(value, datetime):
        return _utc(value, path)
    return value


def _utc(moment: datetime, path: str) -> datetime:
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise UnreadableEvent(f"{moment.isoformat()} in UTC is beyond the calendar - at `{path}`") from None
