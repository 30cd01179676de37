"""What a person asks a service through the command line, answered over the bus.

A request has an id, like an event, and asking twice with the same id does it once.
"""

from __future__ import annotations

import msgspec

from holdfast.event_parts import Id, JobSpec, Name
from holdfast.reading import read
from holdfast.subjects import request_subject


class Request(msgspec.Struct, frozen=True, kw_only=True, tag_field="request", tag=str.lower, omit_defaults=True):
    """What all requests share; `asked_by` is shown in the record."""

    id: Id
    asked_by: str


class SubmitJob(Request, frozen=True, kw_only=True, omit_defaults=True):
    """Run this job."""

    spec: JobSpec


class StopJob(Request, frozen=True, kw_only=True, omit_defaults=True):
    """Stop this job for good."""

    job: Name


class ResetBreaker(Request, frozen=True, kw_only=True, omit_defaults=True):
    """Let nodes of this job be evicted again, though many were."""

    job: Name


class ReleaseNode(Request, frozen=True, kw_only=True, omit_defaults=True):
    """Take this node off the blocklist."""

    node: Name


REQUEST_BYTES_MAX = 256 * 1024
"""A request is at most this long: what it asks for must fit the orders and events that follow from it."""

AnyRequest = SubmitJob | StopJob | ResetBreaker | ReleaseNode


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a service answers: done, or refused with the cause and the cure in `message`."""

    accepted: bool
    message: str = ""


CONTROLLER_REQUESTS = request_subject("controller", "ask")
STANDBY_REQUESTS = request_subject("standby", "ask")

_decoder: msgspec.json.Decoder[AnyRequest] = msgspec.json.Decoder(AnyRequest)


class UnreadableRequest(ValueError):
    """A body that is no request; the message says where it breaks."""


def decode(body: bytes) -> AnyRequest:
    """The request in `body`.

    Raises:
        UnreadableRequest: too long, not JSON, unknown, or with a wrong field.
    """
    if len(body) > REQUEST_BYTES_MAX:
        raise UnreadableRequest(
            f"it has {len(body)} bytes, over the limit of {REQUEST_BYTES_MAX}: "
            "put large arguments and environment variables into a file that the script reads"
        )
    return read(_decoder, body, UnreadableRequest)
