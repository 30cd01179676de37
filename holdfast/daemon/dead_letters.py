"""Messages that a process could not read or handle, kept with the reason for inspection. Pure."""

from __future__ import annotations

import hashlib
from datetime import datetime

import msgspec

from holdfast.bus import Message, event_message
from holdfast.events import MessageRejected
from holdfast.ids import uuid7_of
from holdfast.subjects import KEY_BUCKETS, dead_letter_subject, kv_subject

TEXT_CHARS_MAX = 1000
_ORDERS = tuple(kv_subject(bucket, "") for bucket in KEY_BUCKETS)
"""An order holds the values of --env and the job's token, and readers may see dead letters."""
HEADERS_BYTES_MAX = 8192
"""Room that a dead letter leaves for its headers below the bus's limit."""


class UnhandledMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message that `consumer` could not handle."""

    consumer: str
    subject: str
    body: bytes
    error: str
    message_id: str = ""
    """"" if the message had none."""
    deliveries: int = 1
    node: str | None = None


def rejection(unhandled: UnhandledMessage, now: datetime, message_bytes_max: int) -> tuple[Message, Message]:
    """Return the dead letter, and the event that makes it visible to queries.

    After a crash both are published again: their ids derive from the rejected message, so that the bus drops the
    repetition. The body of an order is withheld. Another that leaves no room for headers below `message_bytes_max`
    loses its tail; a header has its full length.
    """
    fingerprint = _fingerprint(unhandled)
    room = 0 if unhandled.subject.startswith(_ORDERS) else max(0, message_bytes_max - HEADERS_BYTES_MAX)
    letter = Message(
        id=f"dead-{fingerprint.hex()}",
        subject=dead_letter_subject(unhandled.consumer, unhandled.node),
        body=unhandled.body[:room],
        headers={
            "Nats-Msg-Id": f"dead-{fingerprint.hex()}",
            "Holdfast-Error": _header(unhandled.error),
            "Holdfast-Subject": _header(unhandled.subject),
            "Holdfast-Deliveries": str(unhandled.deliveries),
            "Holdfast-Body-Bytes": str(len(unhandled.body)),
        },
    )
    report = event_message(
        MessageRejected(
            id=uuid7_of(int(now.timestamp() * 1000), fingerprint),
            at=now,
            source=f"agent/{unhandled.node}" if unhandled.node else unhandled.consumer,
            node=unhandled.node,
            subject=_printable(unhandled.subject),
            consumer=unhandled.consumer,
            error=_printable(unhandled.error),
            body_bytes=len(unhandled.body),
            deliveries=unhandled.deliveries,
        )
    )
    own_id = f"rejected-{fingerprint.hex()}"
    return letter, msgspec.structs.replace(report, id=own_id, headers={**report.headers, "Nats-Msg-Id": own_id})


def _fingerprint(unhandled: UnhandledMessage) -> bytes:
    names = f"{unhandled.consumer}\0{unhandled.node}\0{unhandled.subject}\0{unhandled.message_id}\0"
    digest = hashlib.sha256(names.encode("utf-8", "surrogateescape"))
    digest.update(unhandled.body)
    return digest.digest()


def _printable(text: str) -> str:
    # jsonb takes neither NUL nor lone surrogates.
    return "".join(character if character.isprintable() else " " for character in text[:TEXT_CHARS_MAX])


def _header(text: str) -> str:
    return " ".join(_printable(text).split()).encode("ascii", "replace").decode()
