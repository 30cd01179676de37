"""What becomes of a message that cannot be recorded: kept whole in the dead-letter stream, and reported. Pure."""

from __future__ import annotations

import hashlib
from datetime import datetime

import msgspec

from holdfast.bus import Delivery, Message, event_message
from holdfast.events import BODY_BYTES_MAX, MessageRejected
from holdfast.ids import uuid7
from holdfast.subjects import dead_letter_subject

CONSUMER = "historian"
ERROR_CHARS_MAX = 1000


class Rejected(msgspec.Struct, frozen=True, kw_only=True):
    """A message that cannot be recorded, and why. `fingerprint` is the same each time it is delivered."""

    subject: str
    body: bytes
    deliveries: int
    error: str
    fingerprint: bytes

    @classmethod
    def of(cls, delivery: Delivery, error: str) -> Rejected:
        """Subject and error are made fit to stand in a header."""
        own_id = delivery.headers.get("Nats-Msg-Id", "")
        digest = hashlib.sha256(f"{CONSUMER}\0{delivery.subject}\0{own_id}\0".encode("utf-8", "surrogateescape"))
        digest.update(delivery.body)
        return cls(
            subject=_one_line(delivery.subject),
            body=delivery.body,
            deliveries=delivery.deliveries,
            error=_one_line(error),
            fingerprint=digest.digest(),
        )


def dead_letter(rejected: Rejected, *, cut: bool = False) -> Message:
    """The message for the dead-letter stream, whole, or `cut` to what a message can always hold."""
    return Message(
        id=f"dead-{rejected.fingerprint.hex()}",
        subject=dead_letter_subject(CONSUMER),
        body=rejected.body[:BODY_BYTES_MAX] if cut else rejected.body,
        headers={
            "Holdfast-Error": rejected.error,
            "Holdfast-Subject": rejected.subject,
            "Holdfast-Deliveries": str(rejected.deliveries),
            "Holdfast-Body-Bytes": str(len(rejected.body)),
        },
    )


def rejection(rejected: Rejected, now: datetime) -> Message:
    """The event that makes the rejection visible to queries, published under an id that a repetition repeats."""
    event = MessageRejected(
        id=uuid7(unix_ms=int(now.timestamp() * 1000), random_bytes=rejected.fingerprint),
        at=now,
        source=CONSUMER,
        subject=rejected.subject,
        consumer=CONSUMER,
        error=rejected.error,
        body_bytes=len(rejected.body),
        deliveries=rejected.deliveries,
    )
    message = event_message(event)
    own_id = f"rejected-{rejected.fingerprint.hex()}"
    return msgspec.structs.replace(message, id=own_id, headers={**message.headers, "Nats-Msg-Id": own_id})


def _one_line(text: str) -> str:
    # A header ends at a line break; neither headers nor jsonb take NUL or lone surrogates.
    return "".join(character if character.isprintable() else " " for character in text[:ERROR_CHARS_MAX])
