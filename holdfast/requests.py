"""What a person asks a service through the command line, answered over the bus.

A request has an id, like an event, and asking twice with the same id does it once.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from holdfast.code.manifest import Digest
from holdfast.decoding import read
from holdfast.events.parts.job import JobSpec
from holdfast.events.parts.scalars import Count, Id, Name
from holdfast.subjects import request_subject

WITHIN_S_MAX = 365 * 86400.0


class CodeOffer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A version of the code that the controller holds already (`KeepCode`), and where it is from.

    `origin` is the directory that it was taken from, `commit` the git commit there, from which its files differ if
    `is_dirty`.
    """

    version: Digest
    files: Count = 0
    code_bytes: Count = 0
    origin: str = ""
    commit: str = ""
    is_dirty: bool = False
    message: str = ""


class Request(msgspec.Struct, frozen=True, kw_only=True, tag_field="request", tag=str.lower, omit_defaults=True):
    """What all requests share; `asked_by` is shown in the record."""

    id: Id
    asked_by: str


class SubmitJob(Request, frozen=True, kw_only=True, omit_defaults=True):
    """Run this job, from this version of its code; None: its script where it lies."""

    spec: JobSpec
    code: CodeOffer | None = None


class StopJob(Request, frozen=True, kw_only=True, omit_defaults=True):
    """Stop this job for good."""

    job: Name


class ResetBreaker(Request, frozen=True, kw_only=True, omit_defaults=True):
    """Let nodes of this job be evicted again, though many were."""

    job: Name


class UpdateJob(Request, frozen=True, kw_only=True, omit_defaults=True):
    """Have the job run this version of its code: `is_urgent` at once, otherwise with the next failure, and `within_s`
    seconds from now at the latest."""

    job: Name
    code: CodeOffer
    is_urgent: bool = False
    within_s: Annotated[float, msgspec.Meta(ge=0, le=WITHIN_S_MAX)] = 86400.0


class RollbackJob(Request, frozen=True, kw_only=True, omit_defaults=True):
    """Have the job run an earlier version of its code at once: `to` is a number or the beginning of a name, "" the last
    good one."""

    job: Name
    to: str = ""


class ReleaseNode(Request, frozen=True, kw_only=True, omit_defaults=True):
    """Take this node off the blocklist."""

    node: Name


class TraceJob(Request, frozen=True, kw_only=True, omit_defaults=True):
    """Find out what the processes of this job do, and who holds it up by that; the trace has the id of the request.

    `native`: with frames of compiled code, for which each process is paused for half a second."""

    job: Name
    native: bool = False


class KeepModel(Request, frozen=True, kw_only=True, omit_defaults=True):
    """Use this model of healthy telemetry from now on (`holdfast.engines.telemetry.model`), as JSON; refused if it
    fails its test, or is of another format."""

    model: msgspec.Raw


class LocateSlowness(Request, frozen=True, kw_only=True, omit_defaults=True):
    """Find out how this job's ranks spend their time, and who makes it slow; the analysis has the id of the request.

    `test`: training is held for a moment, and suspects are tested. `stacks`: instead of that its stacks are taken in
    rounds, and the group that stands elsewhere than most in most of them is named."""

    job: Name
    test: bool = False
    stacks: bool = False


REQUEST_BYTES_MAX = 256 * 1024
"""A request is at most this long: what it asks for must fit the orders and events that follow from it."""

AnyRequest = (
    SubmitJob | StopJob | UpdateJob | RollbackJob | ResetBreaker | ReleaseNode | TraceJob | LocateSlowness | KeepModel
)


class KeepCode(Request, frozen=True, kw_only=True, omit_defaults=True):
    """Take this version, which is on the bus, into the keeping of the controller; refused if not all of it is there."""

    version: Digest


class OfferCode(Request, frozen=True, kw_only=True, omit_defaults=True):
    """Put this version, which the controller holds, on the bus again: it is not there."""

    version: Digest


AnyCodeRequest = KeepCode | OfferCode


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a service answers: done, with what there is to know, or refused with the cause and the cure in `message`."""

    accepted: bool
    message: str = ""


CONTROLLER_REQUESTS = request_subject("controller", "ask")
CODE_REQUESTS = request_subject("controller", "code")
STANDBY_REQUESTS = request_subject("standby", "ask")
ANALYZER_REQUESTS = request_subject("analyzer", "ask")

_code_decoder: msgspec.json.Decoder[AnyCodeRequest] = msgspec.json.Decoder(AnyCodeRequest)
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


def decode_code_request(body: bytes) -> AnyCodeRequest:
    """The request about code in `body`.

    Raises:
        UnreadableRequest: as for `decode`.
    """
    return read(_code_decoder, body, UnreadableRequest)
