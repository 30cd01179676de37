"""Subjects, streams and buckets of all messages.

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
"""Orders for nodes that no longer exist must expire. Until then a node that was cut off finds its order on return; the
controller puts an expired order in force again at once."""
JOBS_BUCKET = "jobs"
"""Orders for all nodes that run a job. Every node may read all of them, and of `desired` only its own."""
KEY_BUCKETS = (DESIRED_BUCKET, JOBS_BUCKET)
CODE_BUCKET = "code"
"""The object store of code versions: manifests and contents of files, each under its hash."""
CODE_KEPT_S = 30 * 24 * 3600
CODE_BYTES_MAX = 2 << 30
"""Postgres has all versions: one that expired on the bus is put there again when a node asks for it."""
DEAD_LETTER_STREAM = "DEADLETTERS"
DEAD_LETTER_ROOT = f"{ROOT}.deadletter"
FLOODS = "floods"
"""The dead letters that name nodes which published more than their share are those of this consumer."""
CONSUMERS = ("controller", "analyzer", "standby", "ckpt-coordinator", "historian")
"""Names of the services' consumers, by which they also answer pings."""


class StreamSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A JetStream stream: its subjects and its retention."""

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
    return f"{ROOT}.{event.event_class}.{event.type}.{event.job or NONE}.{event.node or NONE}"


def stream_of(event_type: type[Event]) -> str:
    return _STREAM_OF_CLASS[event_type.event_class]


def type_filter(event_type: type[Event]) -> str:
    """Return the subject filter for all events of this type."""
    return f"{ROOT}.{event_type.event_class}.{event_type.__struct_config__.tag}.>"


def bucket_stream(bucket: str) -> str:
    """Return the name of the stream of a key bucket."""
    return f"KV_{bucket}"


def object_stream(bucket: str) -> str:
    """Return the name of the stream of an object bucket."""
    return f"OBJ_{bucket}"


def kv_subject(bucket: str, key: str) -> str:
    return f"$KV.{bucket}.{key}"


def stored_subject(bucket: str, key: str) -> str:
    """Return the subject on which the server announces a key's new value, once it is stored."""
    return f"{ROOT}.{bucket}.{key}"


def stream_info_subject(stream: str) -> str:
    """Return the subject on which nodes, whose account has no streams, ask for the state of a stream."""
    return f"{ROOT}.streaminfo.{stream}"


def heartbeat_subject(node: str) -> str:
    """Return the subject of a node's heartbeats, over core NATS: only the newest matters."""
    return f"{ROOT}.heartbeat.{node}"


def holder_subject(node: str) -> str:
    """Return the subject on which the agent that holds a node answers another agent of the same name."""
    return f"{ROOT}.holder.{node}"


ALL_HEARTBEATS = heartbeat_subject("*")


def log_subject(job: str, rank: int | str, node: str) -> str:
    """Return the subject of a rank's live log lines, over core NATS; the files on the node have all of them."""
    return f"{ROOT}.log.{job}.{rank}.{node}"


def request_subject(service: str, verb: str) -> str:
    """Return the subject on which a service answers requests of the command line."""
    return f"{ROOT}.request.{service}.{verb}"


def dead_letter_subject(consumer: str, node: str | None = None) -> str:
    """Return the subject for messages that a consumer, of a node or a service, cannot read or handle."""
    return f"{DEAD_LETTER_ROOT}.{consumer}.{node}" if node else f"{DEAD_LETTER_ROOT}.{consumer}"


def ping_subject(process: str) -> str:
    """Return the subject on which a process (a service's name, or `agent-<node>`) answers that it is ready."""
    kind, _, node = process.partition("agent-")
    return f"{ROOT}.ping.{process}" if kind or not node else agent_ping_subject(node)


def agent_ping_subject(node: str) -> str:
    return f"{ROOT}.ping.agent.{node}"
