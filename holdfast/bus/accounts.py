"""The accounts of a NATS server: who may publish and receive what. Pure.

Permissions alone do not suffice, because NATS does not check the subject for a reply: a client that may send a request
can have the answer published under any subject of its account. So each node and the readers have separate accounts,
joined to that of the services by these exports and imports only. Services are not kept from each other's events, but
from requests, which are the operator's: `NatsBus.serve` accepts only what was published as a request.

Passwords are made elsewhere: by `embedded/servers/credentials.py`, or `deploy/make_secrets.py` for compose.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from holdfast.events import Action, EventClass
from holdfast.events.actions import (
    CheckpointSaved,
    CodeInPlace,
    ContextAhead,
    RanksFinished,
    RanksStarted,
    RanksStopped,
    ShardsBackedUp,
    ShardsFetched,
)
from holdfast.orders.backup import BackupOrder
from holdfast.orders.node import NodeOrder
from holdfast.requests import CODE_REQUESTS, code_requests_of
from holdfast.subjects import (
    CODE_BUCKET,
    DEAD_LETTER_ROOT,
    DESIRED_BUCKET,
    JOBS_BUCKET,
    ROOT,
    agent_ping_subject,
    bucket_stream,
    heartbeat_subject,
    holder_subject,
    kv_subject,
    log_subject,
    object_stream,
    request_subject,
    stored_subject,
    stream_info_subject,
)

SERVICES = ("controller", "analyzer", "standby", "ckpt", "historian")
OPERATOR = "operator"
"""The user of the command line, with the rights of a service."""
READER = "reader"
"""Receives events and nothing else: no orders, no dead letters, which hold the settings of jobs."""

_SERVICES = "SERVICES"
_ASKS = {"historian": ("analyzer",)}
"""Services that make requests to others: the historian brings the analyzer new models."""
ACTIONS_OF_NODES: tuple[type[Action], ...] = (
    CheckpointSaved,
    CodeInPlace,
    RanksFinished,
    ContextAhead,
    RanksStarted,
    RanksStopped,
    ShardsBackedUp,
    ShardsFetched,
)
"""Actions that agents publish."""
_PUBLISHED = ("EVIDENCE", "DECISIONS", "METRICS")
_STREAM_INFO = "$JS.API.STREAM.INFO.*"
_GET = "$JS.API.DIRECT.GET"
_REPLY_WITHIN = "5s"
_NODE_LIMITS = {"max_connections": 8, "max_subscriptions": 32}
_READER_LIMITS = {"max_connections": 16, "max_subscriptions": 32}
"""Limits of accounts, the second for each connection. The server's own limit is for all accounts together: one of them
that reached it would keep the others out. It keeps up to `max_pending` bytes for each connection that does not read
what it asked for or subscribed to. An agent has one connection, and some that the server has not noticed to be dead;
each with nine subscriptions. The server sends a message once for each subscription, so 64 connections with a thousand
each to one's own heartbeats kept it from all else.
"""


def node_user(node: str) -> str:
    return f"agent-{node}"


def users(nodes: Iterable[str]) -> list[str]:
    """Return all users of a cluster with these nodes."""
    return [*SERVICES, OPERATOR, READER, *map(node_user, nodes)]


def server_accounts(passwords: Mapping[str, str], nodes: Iterable[str]) -> str:
    """Return the accounts as a part of nats-server's configuration; `passwords` has one for each user."""

    def user(name: str, permissions: dict[str, Any] | None = None) -> dict[str, Any]:
        login = {"user": name, "password": passwords[name]}
        return login if permissions is None else login | {"permissions": permissions}

    nodes = list(nodes)
    accounts: dict[str, Any] = {
        _SERVICES: {
            "jetstream": "enabled",
            "users": [*(user(name, _service_permissions(name)) for name in SERVICES), user(OPERATOR)],
            "exports": [
                *({"service": subject} for subject in (*_asked("*"), _STREAM_INFO)),
                *({"stream": subject} for subject in (*_ordered("*"), *READ)),
            ],
            "imports": [_service(_account(node), agent_ping_subject(node)) for node in nodes],
        },
        READER: {
            "limits": _READER_LIMITS,
            "users": [user(READER, {"publish": {"deny": ">"}, "subscribe": [f"{ROOT}.>", f"_INBOX.{READER}.>"]})],
            "imports": [
                *(_stream(_SERVICES, subject) for subject in READ),
                # What nodes publish reaches the services as a request, which no other account receives.
                *(_stream(_account(node), subject) for node in nodes for subject in _emitted(node)),
            ],
        },
    }
    for node in nodes:
        accounts[_account(node)] = {
            "limits": _NODE_LIMITS,
            "users": [user(node_user(node), _node_permissions(node))],
            "exports": [
                {"service": agent_ping_subject(node), "accounts": [_SERVICES]},
                *({"stream": subject, "accounts": [READER]} for subject in _emitted(node)),
            ],
            "imports": [
                *(_service(_SERVICES, subject) for subject in _asked(node)),
                # The API under its own name is that of this account, which has no streams.
                {**_service(_SERVICES, _STREAM_INFO), "to": stream_info_subject("*")},
                # Agents of an earlier release ask for code where the command line does.
                {**_service(_SERVICES, code_requests_of(node)), "to": CODE_REQUESTS},
                *(_stream(_SERVICES, subject) for subject in _ordered(node)),
            ],
        }
    # JSON is valid there.
    return "accounts: " + msgspec.json.format(msgspec.json.encode(accounts), indent=1).decode() + "\n"


def stored_for(node: str) -> list[str]:
    """Return the subjects on which a node may publish what streams store. Its name is the last token of each."""
    return [
        f"{ROOT}.evidence.*.*.{node}",
        f"{ROOT}.metric.*.*.{node}",
        *(f"{ROOT}.action.{action.__struct_config__.tag}.*.{node}" for action in ACTIONS_OF_NODES),
        f"{DEAD_LETTER_ROOT}.*.{node}",
    ]


READ = tuple(f"{ROOT}.{kind}.>" for kind in (*EventClass, "heartbeat", "log"))
"""Subjects that the reader may subscribe to: all events, heartbeats and lines of logs."""


def _account(node: str) -> str:
    return f"NODE-{node}"


def _service(account: str, subject: str) -> dict[str, Any]:
    return {"service": {"account": account, "subject": subject}}


def _stream(account: str, subject: str) -> dict[str, Any]:
    return {"stream": {"account": account, "subject": subject}}


def _emitted(node: str) -> list[str]:
    """Return the subjects of a node's events and log lines, and of its heartbeats (`*`: all nodes)."""
    return [f"{ROOT}.*.*.*.{node}", heartbeat_subject(node)]


def _asked(node: str) -> list[str]:
    """Return all subjects by which a node reaches the services. Few and wide, for the server's start takes longer with
    each; permissions narrow them.
    """
    return [
        *_emitted(node),
        f"{DEAD_LETTER_ROOT}.*.{node}",
        code_requests_of(node),
        f"{_GET}.*",
        f"{_GET}.{bucket_stream(DESIRED_BUCKET)}.{kv_subject(DESIRED_BUCKET, '*')}.{node}",
        f"{_GET}.{object_stream(CODE_BUCKET)}.$O.{CODE_BUCKET}.M.*",
    ]


def _ordered(node: str) -> list[str]:
    """Return the subjects of a node's orders, and of orders for all nodes that run a job."""
    return [stored_subject(DESIRED_BUCKET, f"*.{node}"), stored_subject(JOBS_BUCKET, "*.*")]


def _service_permissions(service: str) -> dict[str, Any]:
    asks = _ASKS.get(service, ())
    return {"publish": {"deny": [request_subject(other, ">") for other in SERVICES if other not in asks]}}


def _node_permissions(node: str) -> dict[str, Any]:
    answered = (agent_ping_subject(node), holder_subject(node))
    return {
        "publish": [
            *stored_for(node),
            log_subject("*", "*", node),
            heartbeat_subject(node),
            code_requests_of(node),
            CODE_REQUESTS,
            *(
                f"{_GET}.{bucket_stream(DESIRED_BUCKET)}.{kv_subject(DESIRED_BUCKET, kind.key_of(node))}"
                for kind in (NodeOrder, BackupOrder)
            ),
            f"{_GET}.{bucket_stream(JOBS_BUCKET)}",
            f"{_GET}.{object_stream(CODE_BUCKET)}",
            f"{_GET}.{object_stream(CODE_BUCKET)}.$O.{CODE_BUCKET}.M.*",
            # Whether the server still has what this node published. So nodes can read the events of others.
            *(f"{_GET}.{stream}" for stream in _PUBLISHED),
            *map(stream_info_subject, _PUBLISHED),
            # A health check beside the agent asks it; so does another agent of this node's name.
            *answered,
        ],
        "subscribe": [f"_INBOX.{node_user(node)}.>", heartbeat_subject(node), *answered, *_ordered(node)],
        "allow_responses": {"max": 1, "expires": _REPLY_WITHIN},
    }
