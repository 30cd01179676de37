"""Limits of the messages of a decision. Pure.

Checked before the commit: afterwards the message would be durable and block the outbox.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.bus import Message
from holdfast.events import BODY_BYTES_MAX


class EffectTooLarge(Exception):
    """A message of a decision is too long; the error has its subject, size and limit."""


def require_sendable(messages: Iterable[Message], message_bytes_max: int) -> None:
    """Raise EffectTooLarge if a message is too long; `message_bytes_max` is the limit of the bus, headers included."""
    for message in messages:
        if len(message.body) > BODY_BYTES_MAX:
            raise EffectTooLarge(
                f"the decision would publish a message of {len(message.body)} bytes on {message.subject}, "
                f"over the limit of {BODY_BYTES_MAX}: ask for less at once"
            )
        if message.wire_bytes > message_bytes_max:
            raise EffectTooLarge(
                f"the decision would publish a message of {message.wire_bytes} bytes on {message.subject}, over the "
                f"max_payload of {message_bytes_max} of this NATS server: raise it in the server's configuration"
            )
