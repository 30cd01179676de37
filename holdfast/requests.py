"""Requests of a person to a service, made by the command line and answered over the bus.

A request has an id, like an event; a repeated request with the same id is carried out once.
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

REGISTER = b"register"
"""Body of a ping by which the standby service asks an agent to publish its registration again."""

SIGN_AGAIN = b"sign again"
"""Body of a ping to a service that writes orders. It signs those in force again if its key has changed, and answers
with its public key when no order with another signature is under way; with nothing if it cannot now."""


class CodeOffer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A version of the code that the controller already holds (`KeepCode`), and its origin."""

    version: Digest
    files: Count = 0
    code_bytes: Count = 0
    origin: str = ""
    """The directory that it was taken from."""
    commit: str = ""
    """The git commit there."""
    is_dirty: bool = False
    """The files differ from the commit."""
    message: str = ""


class Request(msgspec.Struct, frozen=True, kw_only=True, tag_field="request", tag=str.lower, omit_defaults=True):
    """Base of all requests; `asked_by` is shown in the history."""

    id: Id
    asked_by: str


class SubmitJob(Request, frozen=True, kw_only=True, omit_defaults=True):
    """Run a job, from a version of its code; None: from its script in place."""

    spec: JobSpec
    code: CodeOffer | None = None


class StopJob(Request, frozen=True, kw_only=True, omit_defaults=True):
    """Stop a job for good."""

    job: Name


class ResetBreaker(Request, frozen=True, kw_only=True, omit_defaults=True):
    """Allow evictions from a job again after its circuit breaker opened."""

    job: Name


class UpdateJob(Request, frozen=True, kw_only=True, omit_defaults=True):
    """Run another version of a job's code: at once if `is_urgent`, otherwise with the next failure.

    In any case within `within_s` seconds from now.
    """

    job: Name
    code: CodeOffer
    is_urgent: bool = False
    within_s: Annotated[float, msgspec.Meta(ge=0, le=WITHIN_S_MAX)] = 86400.0


class RollbackJob(Request, frozen=True, kw_only=True, omit_defaults=True):
    """Run an earlier version of a job's code at once."""

    job: Name
    to: str = ""
    """Its number or the beginning of its name; "": the last good one."""


class ReleaseNode(Request, frozen=True, kw_only=True, omit_defaults=True):
    """Take a node off the blocklist."""

    node: Name


class TraceJob(Request, frozen=True, kw_only=True, omit_defaults=True):
    """Trace the processes of a job and find the ranks that hold it up; the trace has the id of the request."""

    job: Name
    native: bool = False
    """Include frames of compiled code, which pauses each process for half a second."""


class KeepModel(Request, frozen=True, kw_only=True, omit_defaults=True):
    """Use this model of healthy telemetry from now on (`holdfast.engines.telemetry.model`), as JSON; refused if it
    fails its test, or is of another format."""

    model: msgspec.Raw


class LocateSlowness(Request, frozen=True, kw_only=True, omit_defaults=True):
    """Profile the ranks of a job and find the machines that slow it down; the analysis has the id of the request."""

    job: Name
    test: bool = False
    """Hold training for a moment and test suspects."""
    stacks: bool = False
    """Instead of that, take rounds of stacks and name the group that differs in most of them."""


REQUEST_BYTES_MAX = 256 * 1024
"""Limit of a request: its content must fit the orders and events that follow from it."""

AnyRequest = (
    SubmitJob | StopJob | UpdateJob | RollbackJob | ResetBreaker | ReleaseNode | TraceJob | LocateSlowness | KeepModel
)


class KeepCode(Request, frozen=True, kw_only=True, omit_defaults=True):
    """Store a version, which is on the bus, in the controller; refused if it is incomplete."""

    version: Digest


class OfferCode(Request, frozen=True, kw_only=True, omit_defaults=True):
    """Put a version of the controller on the bus again, where it is missing."""

    version: Digest


AnyCodeRequest = KeepCode | OfferCode


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer of a service: done, or refused with cause and cure in `message`."""

    accepted: bool
    message: str = ""
    lacking: tuple[str, ...] = ()
    """Hashes of contents that a version of the code lacks (`KeepCode`)."""


CONTROLLER_REQUESTS = request_subject("controller", "ask")
CODE_REQUESTS = request_subject("controller", "code")
"""The command line's; of nodes see `code_requests_of`."""
STANDBY_REQUESTS = request_subject("standby", "ask")
ANALYZER_REQUESTS = request_subject("analyzer", "ask")


def code_requests_of(node: str) -> str:
    """Return the subject on which this node asks for code (`*`: all nodes): each has its turn."""
    return f"{CODE_REQUESTS}.{node}"


_code_decoder: msgspec.json.Decoder[AnyCodeRequest] = msgspec.json.Decoder(AnyCodeRequest)
_decoder: msgspec.json.Decoder[AnyRequest] = msgspec.json.Decoder(AnyRequest)


class UnreadableRequest(ValueError):
    """A body that is not a request; the message names the place of the error."""


def decode(body: bytes) -> AnyRequest:
    """Return the request in `body`.

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
    """Return the request about code in `body`.

    Raises:
        UnreadableRequest: as for `decode`.
    """
    return read(_code_decoder, body, UnreadableRequest)
