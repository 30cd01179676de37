"""Messages that nobody could read or handle: kept whole, with the reason beside them, for someone to look at."""

from __future__ import annotations

from holdfast.bus import Delivery, Message
from holdfast.ids import uuid7
from holdfast.subjects import dead_letter_subject

BODY_KEPT_BYTES_MAX = 7_000_000
"""A dead letter keeps at most this much of a body; the bus itself takes a little more."""


def dead_letter(delivery: Delivery, consumer: str, error: str) -> Message:
    """What is published for `delivery`: its body unchanged, the reason and where it came from as headers."""
    return dead_letter_of(delivery.subject, delivery.body, consumer, error, delivery.deliveries)


def dead_letter_of(subject: str, body: bytes, consumer: str, error: str, deliveries: int) -> Message:
    """The same for a body that did not come as a delivery."""
    letter = uuid7()
    return Message(
        id=letter,
        subject=dead_letter_subject(consumer),
        body=body[:BODY_KEPT_BYTES_MAX],
        headers={
            "Nats-Msg-Id": letter,
            "Holdfast-Error": " ".join(error.split())[:1000].encode("ascii", "replace").decode(),
            "Holdfast-Subject": subject[:1000].encode("ascii", "replace").decode(),
            "Holdfast-Deliveries": str(deliveries),
        },
    )
