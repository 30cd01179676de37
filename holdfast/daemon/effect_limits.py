"""The messages of a decision, and their limits. Pure.

Limits are checked before the commit: afterwards the message would be durable and block the outbox.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from holdfast.bus import Message, event_message
from holdfast.effects import Effect
from holdfast.events import BODY_BYTES_MAX
from holdfast.orders.signatures import OrderSigner
from holdfast.subjects import kv_subject


class EffectTooLarge(Exception):
    """A message of a decision is too long; the error has its subject, size and limit."""


def messages_of(effect: Effect, signer: OrderSigner | None, now: datetime) -> list[Message]:
    """Return the messages of an effect, events before the orders that follow from them. Orders need a signer."""
    messages = [event_message(event) for event in effect.events]
    for order in effect.orders:
        assert signer is not None, "a service that writes orders has a key to sign them"
        subject = kv_subject(order.bucket(), order.key)
        messages.append(Message(id=order.message_id, subject=subject, body=signer.sign(order, now)))
    return messages


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
