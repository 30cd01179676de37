"""What a decision says must be something that the bus carries and every consumer reads. Pure.

Asked before the commit: afterwards the message would be durable, and stand in the outbox before everything else.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.bus import Message
from holdfast.events import BODY_BYTES_MAX


class EffectTooLarge(Exception):
    """A decision would say more than a message can hold; its words say which, and by how much."""


def require_sendable(messages: Iterable[Message], message_bytes_max: int) -> None:
    """Every message is short enough; `message_bytes_max` is what the bus takes, headers included.

    Raises:
        EffectTooLarge: one is not.
    """
    for message in messages:
        if len(message.body) > BODY_BYTES_MAX:
            raise EffectTooLarge(
                f"what follows would be a message of {len(message.body)} bytes on {message.subject}, "
                f"over the limit of {BODY_BYTES_MAX}: ask for less at once"
            )
        if message.wire_bytes > message_bytes_max:
            raise EffectTooLarge(
                f"what follows would be a message of {message.wire_bytes} bytes on {message.subject}, over the "
                f"max_payload of {message_bytes_max} of this NATS server: raise it in the server's configuration"
            )
