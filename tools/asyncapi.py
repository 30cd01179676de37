"""The AsyncAPI 3.0 description of everything on the bus, generated from the vocabulary.

    python -m tools.asyncapi > docs/asyncapi.yaml

A unit test fails when the file in `docs/` is not what this module prints.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, get_args, get_type_hints

import msgspec

from holdfast import subjects
from holdfast.bus.accounts import OPERATOR, READ, READER, SERVICES, node_user
from holdfast.events import BODY_BYTES_MAX, EVENT_TYPES, Event, EventClass
from holdfast.orders.any_order import AnyOrder
from holdfast.orders.base import Order
from holdfast.requests import ANALYZER_REQUESTS, CONTROLLER_REQUESTS, STANDBY_REQUESTS, Answer, AnyRequest, Request
from holdfast.settings.meanings import field_docs
from holdfast.subjects import ROOT, STREAMS, StreamSpec

ASYNCAPI_VERSION = "3.0.0"
API_VERSION = "1"

_REF = "#/components/schemas/{name}"

_ORDERS: tuple[type[Order], ...] = get_args(AnyOrder)
_REQUESTS: tuple[type[Request], ...] = get_args(AnyRequest)
_REQUEST_SUBJECTS = {
    "AskController": CONTROLLER_REQUESTS,
    "AskStandby": STANDBY_REQUESTS,
    "AskAnalyzer": ANALYZER_REQUESTS,
}

_CLASS_LINES = {
    EventClass.EVIDENCE: "a fact that an agent observed",
    EventClass.FINDING: "a conclusion drawn from facts",
    EventClass.DECISION: "a decision of a service, with its reason",
    EventClass.ACTION: "an action that was carried out",
    EventClass.METRIC: "samples",
}

_HEARTBEAT = {
    "title": "Heartbeat",
    "description": "A sign of life of an agent, about once a second; it is not stored.",
    "type": "object",
    "properties": {
        "node": {"type": "string"},
        "instance": {"type": "string"},
        "since": {"type": "string", "format": "date-time"},
        "place": {"$ref": _REF.format(name="AgentPlace")},
        "at": {"type": "string", "format": "date-time"},
        "epoch": {"type": "integer"},
        "generation": {"type": "integer"},
        "step": {"type": "integer"},
    },
    "required": ["node", "instance", "at"],
}

_SECURITY_SCHEMES = {
    "reader": {
        "type": "userPassword",
        "description": f"The user `{READER}`, for tools: it receives events, log lines and heartbeats, replies under "
        f"_INBOX.{READER} only, and may publish nothing. It has no streams: what has passed is in Postgres.",
    },
    "node": {
        "type": "userPassword",
        "description": f"A node's user, `{node_user('NODE')}`: it publishes what its node saw, and reads its orders.",
    },
    "process": {
        "type": "userPassword",
        "description": f"The user of a service ({', '.join(SERVICES)}), or `{OPERATOR}`, who alone makes requests.",
    },
    "certificate": {
        "type": "X509",
        "description": "Beside the password, where the server asks for a client's certificate, as under compose.",
    },
}
"""Any one of the first three, by docs/security.md."""
_READ = tuple(subject.removesuffix(">") for subject in READ)
"""Beginnings of the subjects that the reader receives."""

_LOG_LINES = {
    "title": "LogLines",
    "description": "Lines of a rank, live; the files on its node have all of them.",
    "type": "object",
    "properties": {
        "rank": {"type": "integer"},
        "stream": {"type": "string"},
        "lines": {"type": "array", "items": {"type": "string"}},
        "generation": {"type": "integer"},
        "before": {"type": "integer", "description": "How many lines this output had before: what is missing shows."},
        "is_open": {"type": "boolean", "description": "The last line goes on in the next message."},
    },
    "required": ["rank", "stream", "lines"],
}


def document() -> dict[str, Any]:
    """Return the whole description."""
    events = list(EVENT_TYPES.values())
    _, schemas = msgspec.json.schema_components([*events, *_ORDERS, *_REQUESTS, Answer], ref_template=_REF)
    docs = {kind.__name__: field_docs(kind) for kind in _structs_of([*events, *_ORDERS, *_REQUESTS, Answer])}
    channels = {event.__name__: _event_channel(event) for event in events} | _other_channels()
    return {
        "asyncapi": ASYNCAPI_VERSION,
        "info": {
            "title": "Holdfast on the bus",
            "version": API_VERSION,
            "description": "Every message that Holdfast's processes exchange over NATS. Events are plain JSON, "
            "complete by themselves; fields are only ever added, a change of meaning is a new type. Subscribe with any "
            "NATS client, for example to holdfast.v1.decision.> or to holdfast.v1.*.*.job-7.>",
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/json",
        "servers": {
            "nats": {
                "host": "nats:4222",
                "protocol": "nats",
                "description": "NATS with JetStream. `holdfast connect` prints the address of a cluster, and the "
                "password of its reader.",
                "security": [{"$ref": f"#/components/securitySchemes/{name}"} for name in _SECURITY_SCHEMES],
            }
        },
        "channels": channels,
        "operations": {
            f"on{name}": _operation(name, channel) for name, channel in channels.items() if channel["address"]
        },
        "components": {
            "messages": {event.__name__: _message(event) for event in events} | _other_messages(),
            "securitySchemes": _SECURITY_SCHEMES,
            "messageTraits": {"cloudEvent": {"headers": _cloud_event_headers()}},
            "parameters": {
                "job": {"description": f"the job's name, or {subjects.NONE} where there is none"},
                "node": {"description": f"the node's name, or {subjects.NONE} where there is none"},
                "rank": {"description": "the rank's number"},
                "consumer": {"description": "the service that could not read or handle the message"},
            },
            "schemas": {name: _described(schema, docs.get(name, {})) for name, schema in schemas.items()}
            | {"Heartbeat": _HEARTBEAT, "LogLines": _LOG_LINES},
        },
    }


def _operation(name: str, channel: dict[str, Any]) -> dict[str, Any]:
    operation = {
        "action": "receive",
        "channel": {"$ref": f"#/channels/{name}"},
        "summary": channel["summary"],
    }
    if channel["address"].startswith(_READ):
        operation["security"] = [{"$ref": "#/components/securitySchemes/reader"}]
    if name in _REQUEST_SUBJECTS:
        return operation | {"reply": {"channel": {"$ref": "#/channels/Answer"}}}
    return operation


def _event_channel(event: type[Event]) -> dict[str, Any]:
    tag = event.__struct_config__.tag
    stream = next(stream for stream in STREAMS if stream.name == subjects.stream_of(event))
    return {
        "address": f"{ROOT}.{event.event_class}.{tag}.{{job}}.{{node}}",
        "title": event.__name__,
        "summary": _first_line(event),
        "description": f"{event.event_class.value.capitalize()}: {_CLASS_LINES[event.event_class]}. {_kept(stream)}",
        "parameters": _parameters("job", "node"),
        "messages": {event.__name__: {"$ref": f"#/components/messages/{event.__name__}"}},
    }


def _message(event: type[Event]) -> dict[str, Any]:
    return {
        "name": str(event.__struct_config__.tag),
        "title": event.__name__,
        "summary": _first_line(event),
        "contentType": "application/json",
        "traits": [{"$ref": "#/components/messageTraits/cloudEvent"}],
        "payload": {"$ref": _REF.format(name=event.__name__)},
    }


def _order_channel(order: type[Order]) -> dict[str, Any]:
    return {
        "address": subjects.kv_subject(order.bucket(), order.key_of(f"{{{order.addressee}}}")),
        "title": order.__name__,
        "summary": _first_line(order),
        "description": f"The newest value of each key of the key-value bucket `{order.bucket()}` holds. After the "
        f"order's own fields come `signed_ms` and `signature`, by the key of {order.writer} "
        "(holdfast/orders/signatures.py).",
        "parameters": _parameters(order.addressee),
        "messages": {order.__name__: {"$ref": f"#/components/messages/{order.__name__}"}},
    }


def _other_channels() -> dict[str, Any]:
    dead_letters = next(stream for stream in STREAMS if stream.name == subjects.DEAD_LETTER_STREAM)
    asked = {
        name: {
            "address": subject,
            "title": name,
            "summary": f"Requests of a person to the {subject.split('.')[-2]} service, answered when carried out.",
            "messages": {
                request.__name__: {"$ref": f"#/components/messages/{request.__name__}"} for request in _REQUESTS
            },
        }
        for name, subject in _REQUEST_SUBJECTS.items()
    }
    orders = {order.__name__: _order_channel(order) for order in _ORDERS}
    return (
        asked
        | orders
        | {
            "Answer": {
                "address": None,
                "title": "Answer",
                "summary": _first_line(Answer),
                "description": "Sent to the reply subject of the request, once.",
                "messages": {"Answer": {"$ref": "#/components/messages/Answer"}},
            },
            "Heartbeat": {
                "address": subjects.heartbeat_subject("{node}"),
                "title": "Heartbeat",
                "summary": _HEARTBEAT["description"],
                "parameters": _parameters("node"),
                "messages": {"Heartbeat": {"$ref": "#/components/messages/Heartbeat"}},
            },
            "LogLines": {
                "address": subjects.log_subject("{job}", "{rank}", "{node}"),
                "title": "LogLines",
                "summary": _LOG_LINES["description"],
                "parameters": _parameters("job", "rank", "node"),
                "messages": {"LogLines": {"$ref": "#/components/messages/LogLines"}},
            },
            "DeadLetter": {
                "address": subjects.dead_letter_subject("{consumer}"),
                "title": "DeadLetter",
                "summary": "A message that a consumer could not read or handle, with its body unchanged.",
                "description": _kept(dead_letters),
                "parameters": _parameters("consumer"),
                "messages": {"DeadLetter": {"$ref": "#/components/messages/DeadLetter"}},
            },
        }
    )


def _other_messages() -> dict[str, Any]:
    def plain(name: str) -> dict[str, Any]:
        return {"name": name, "contentType": "application/json", "payload": {"$ref": _REF.format(name=name)}}

    names = (
        *(order.__name__ for order in _ORDERS),
        "Heartbeat",
        "LogLines",
        "Answer",
        *(request.__name__ for request in _REQUESTS),
    )
    return {name: plain(name) for name in names} | {
        "DeadLetter": {
            "name": "DeadLetter",
            "contentType": "application/octet-stream",
            "headers": {
                "type": "object",
                "properties": {
                    "Holdfast-Error": {"type": "string", "description": "the reason"},
                    "Holdfast-Subject": {"type": "string", "description": "the subject of the message"},
                    "Holdfast-Deliveries": {"type": "string", "description": "number of deliveries"},
                },
            },
            "payload": {"type": "string", "format": "binary"},
        }
    }


def _cloud_event_headers() -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            "Nats-Msg-Id": {"type": "string", "description": "the event's id: the bus stores an id once"},
            "ce-specversion": {"type": "string", "const": "1.0"},
            "ce-id": {"type": "string", "description": "the event's id"},
            "ce-type": {"type": "string", "description": "holdfast.<class>.<type>"},
            "ce-source": {"type": "string", "description": "/holdfast/<process>"},
            "ce-time": {"type": "string", "format": "date-time"},
            "traceparent": {"type": "string", "description": "W3C trace context: the incident is the trace"},
        },
    }


def _parameters(*names: str) -> dict[str, Any]:
    return {name: {"$ref": f"#/components/parameters/{name}"} for name in names}


def _kept(stream: StreamSpec) -> str:
    hours = stream.keep_s // 3600
    kept = f"{hours // 24} days" if hours % 24 == 0 and hours > 24 else f"{hours} h"
    return (
        f"Kept in the stream {stream.name} for {kept}{' in memory' if stream.in_memory else ''}; "
        f"a body is at most {BODY_BYTES_MAX} bytes."
    )


def _first_line(of: type) -> str:
    return (of.__doc__ or "").strip().splitlines()[0]


def _structs_of(types: Iterable[Any]) -> set[type[msgspec.Struct]]:
    """Return the struct types that values of these types are made of."""
    found: set[type[msgspec.Struct]] = set()
    waiting = list(types)
    while waiting:
        kind = waiting.pop()
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            if kind not in found:
                found.add(kind)
                waiting += get_type_hints(kind).values()
        else:
            waiting += get_args(kind)
    return found


def _described(schema: dict[str, Any], docs: Mapping[str, str]) -> dict[str, Any]:
    """Add the fields' docs to a schema, with each description on one line."""
    described = dict(schema)
    if "description" in schema:
        described["description"] = " ".join(schema["description"].split())
    if "properties" in schema:
        described["properties"] = {
            name: inner | ({"description": docs[name]} if name in docs else {})
            for name, inner in schema["properties"].items()
        }
    return described


def as_yaml(value: Any) -> str:
    """`value`, made of dicts, lists and scalars, as YAML in block style."""
    return "\n".join(_lines(value)) + "\n"


def _lines(value: Any) -> Iterator[str]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _entry(f"{_scalar(key)}:", inner, "  ")
    elif isinstance(value, list) and value:
        for inner in value:
            if isinstance(inner, dict | list) and inner:
                first, *rest = _lines(inner)
                yield f"- {first}"
                yield from (f"  {line}" for line in rest)
            else:
                yield f"- {_scalar(inner)}"
    else:
        yield _scalar(value)


def _entry(head: str, inner: Any, indent: str) -> Iterator[str]:
    if isinstance(inner, dict | list) and inner:
        yield head
        yield from (f"{indent}{line}" for line in _lines(inner))
    else:
        yield f"{head} {_scalar(inner)}"


def _scalar(value: Any) -> str:
    if isinstance(value, str) and value.isidentifier() and value.lower() not in _YAML_WORDS:
        return value
    # JSON scalars, empty objects and empty arrays are YAML as they are.
    return json.dumps(value, ensure_ascii=False)


_YAML_WORDS = {"true", "false", "yes", "no", "on", "off", "null", "y", "n"}

if __name__ == "__main__":
    sys.stdout.write(as_yaml(document()))
