"""What becomes of a message that cannot be recorded: kept whole in the dead-letter stream, and reported. Pure."""

from __future__ import annotations

import hashlib
from datetime import datetime

import msgspec

from holdfast.bus import Delivery, Message, event_message
from holdfast.dead_letters import dead_letter
from holdfast.events import MessageRejected
from holdfast.ids import uuid7

CONSUMER = "historian"
TEXT_CHARS_MAX = 1000
BODY_CUT_BYTES = 500_000
"""What is kept of a body that leaves no room for the headers of a dead letter."""


def rejection(delivery: Delivery, error: str, now: datetime) -> tuple[Message, Message]:
    """The dead letter, and the event that makes it visible to queries.

    A crash between publishing these and settling the delivery publishes them again: their message ids follow from
    what was rejected, so that the bus drops the repetition.
    """
    fingerprint = _fingerprint(delivery)
    event = MessageRejected(
        id=uuid7(unix_ms=int(now.timestamp() * 1000), random_bytes=fingerprint),
        at=now,
        source=CONSUMER,
        subject=_printable(delivery.subject),
        consumer=CONSUMER,
        error=_printable(error),
        body_bytes=len(delivery.body),
        deliveries=delivery.deliveries,
    )
    letter = _with_id(dead_letter(delivery, CONSUMER, error), f"dead-{fingerprint.hex()}")
    return letter, _with_id(event_message(event), f"rejected-{fingerprint.hex()}")


def without_tail(letter: Message) -> Message:
    """The dead letter with the beginning of its body only; a header says how long it was."""
    headers = {**letter.headers, "Holdfast-Body-Bytes": str(len(letter.body))}
    return msgspec.structs.replace(letter, body=letter.body[:BODY_CUT_BYTES], headers=headers)


def _fingerprint(delivery: Delivery) -> bytes:
    own_id = delivery.headers.get("Nats-Msg-Id", "")
    digest = hashlib.sha256(f"{CONSUMER}\0{delivery.subject}\0{own_id}\0".encode("utf-8", "surrogateescape"))
    digest.update(delivery.body)
    return digest.digest()


def _with_id(message: Message, own_id: str) -> Message:
    return msgspec.structs.replace(message, id=own_id, headers={**message.headers, "Nats-Msg-Id": own_id})


def _printable(text: str) -> str:
    # jsonb takes neither NUL nor lone surrogates.
    return "".join(character if character.isprintable() else " " for character in text[:TEXT_CHARS_MAX])
