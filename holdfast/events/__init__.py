"""All events that Holdfast's processes exchange.

An event is a fact that does not change. It is complete by itself and travels as plain JSON, so that
any NATS client in any language can read it. Rules: only add fields; a change of meaning is a new type.
`docs/asyncapi.yaml` is generated from this package.

Units stand last in a name (`_s` seconds, `_bytes`); times are UTC and travel as RFC 3339.
"""

# ruff: noqa: F403, F405 - this package republishes what its files define
from __future__ import annotations

from functools import cache
from typing import get_args

import msgspec

from holdfast.decoding import read
from holdfast.events.actions import *
from holdfast.events.base import *
from holdfast.events.checkpoint_evidence import *
from holdfast.events.decisions import *
from holdfast.events.evidence import *
from holdfast.events.findings import *
from holdfast.events.metrics import *
from holdfast.events.slow_evidence import *

BODY_BYTES_MAX = 1_000_000
"""An event's body is at most this long; what is larger goes to the object store with a reference."""

LOG_TAIL_CHARS_MAX = 16_384
"""Limit of a rank's log in an event."""

AnyEvent = AnyEvidence | AnyFinding | AnyDecision | AnyAction | AnyMetric

EVENT_TYPES: dict[str, type[Event]] = {str(cls.__struct_config__.tag): cls for cls in get_args(AnyEvent)}

_encoder = msgspec.json.Encoder()


@cache
def _decoder() -> msgspec.json.Decoder[AnyEvent]:
    # Takes tens of milliseconds to build; ranks import parts of events and decode none.
    return msgspec.json.Decoder(AnyEvent)


class UnreadableEvent(ValueError):
    """A body that is not an event of this vocabulary; the message names the place of the error."""


def encode(event: Event) -> bytes:
    """Return the event as JSON."""
    return _encoder.encode(event)


def decode(body: bytes) -> AnyEvent:
    """Return the event in `body`.

    Raises:
        UnreadableEvent: too long, not JSON, of an unknown type, or with a wrong field.
    """
    if len(body) > BODY_BYTES_MAX:
        raise UnreadableEvent(f"body of {len(body)} bytes is over the limit of {BODY_BYTES_MAX}")
    return read(_decoder(), body, UnreadableEvent)
