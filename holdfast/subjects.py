"""Where messages travel: subjects, streams and keys, in one place.

An event's subject is `holdfast.v1.<class>.<type>.<job>.<node>`, with `_` where one does not apply, so that
`holdfast.v1.decision.>` or `holdfast.v1.*.*.job-7.>` can be subscribed to with any NATS client.
"""

from __future__ import annotations

import msgspec

from holdfast.events import Event, EventClass

ROOT = "holdfast.v1"
NONE = "_"
DESIRED_BUCKET = "desired"
DESIRED_KEPT_S = 6 * 24 * 3600
"""What nodes were told that are no more must not stay for ever. Until then a node that was cut off finds its order when
it is back; what still holds the controller puts again at once."""
CODE_BUCKET = "code"
"""The object store of code versions: manifests and contents of files, each under its hash."""
CODE_KEPT_S = 30 * 24 * 3600
CODE_BYTES_MAX = 2 << 30
"""The truth is in Postgres: what the bus has lost or forgotten is put there again when a node asks for it."""
DEAD_LETTER_STREAM = "DEADLETTERS"
DEAD_LETTER_ROOT = f"{ROOT}.deadletter"


class StreamSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A JetStream stream: what it takes and how long it keeps it."""

    name: str
    subjects: tuple[str, ...]
    keep_s: int
    in_memory: bool = False
    bytes_max: int


_DAY_S = 24 * 3600
_GIB = 1 << 30

STREAMS = (
    StreamSpec(name="EVIDENCE", subjects=(f"{ROOT}.evidence.>",), keep_s=_DAY_S, bytes_max=4 * _GIB),
    StreamSpec(
        name="DECISIONS",
        subjects=(f"{ROOT}.finding.>", f"{ROOT}.decision.>", f"{ROOT}.action.>"),
        keep_s=30 * _DAY_S,
        bytes_max=4 * _GIB,
    ),
    StreamSpec(name="METRICS", subjects=(f"{ROOT}.metric.>",), keep_s=3600, in_memory=True, bytes_max=_GIB // 4),
    StreamSpec(name=DEAD_LETTER_STREAM, subjects=(f"{DEAD_LETTER_ROOT}.>",), keep_s=30 * _DAY_S, bytes_max=_GIB),
)

_STREAM_OF_CLASS = {
    EventClass.EVIDENCE: "EVIDENCE",
    EventClass.FINDING: "DECISIONS",
    EventClass.DECISION: "DECISIONS",
    EventClass.ACTION: "DECISIONS",
    EventClass.METRIC: "METRICS",
}


def event_subject(event: Event) -> str:
    """The subject that this event is published on."""
    return f"{ROOT}.{event.event_class}.{event.type}.{event.job or NONE}.{event.node or NONE}"


def stream_of(event_type: type[Event]) -> str:
    """The stream that keeps events of this type."""
    return _STREAM_OF_CLASS[event_type.event_class]


def type_filter(event_type: type[Event]) -> str:
    """The subject filter that takes all events of this type."""
    return f"{ROOT}.{event_type.event_class}.{event_type.__struct_config__.tag}.>"


def kv_subject(bucket: str, key: str) -> str:
    """The subject that a put of this key is published on."""
    return f"$KV.{bucket}.{key}"


def heartbeat_subject(node: str) -> str:
    """Heartbeats travel over core NATS: only the newest matters."""
    return f"{ROOT}.heartbeat.{node}"


ALL_HEARTBEATS = heartbeat_subject("*")


def log_subject(job: str, rank: int) -> str:
    """Log lines of a rank, live, over core NATS; the files on the node hold all of them."""
    return f"{ROOT}.log.{job}.{rank}"


def request_subject(service: str, verb: str) -> str:
    """Where a service answers requests of the command line."""
    return f"{ROOT}.request.{service}.{verb}"


def dead_letter_subject(consumer: str) -> str:
    """Where a consumer puts what it cannot read or handle."""
    return f"{DEAD_LETTER_ROOT}.{consumer}"


def ping_subject(process: str) -> str:
    """Where a running process (a service's name, or `agent-<node>`) answers that it is ready."""
    return f"{ROOT}.ping.{process}"
