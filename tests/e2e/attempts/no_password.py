"""A client of NATS that reaches the port and has no password."""

from __future__ import annotations

from typing import Any

import pytest

from attempts.nats_wire import Refused, Wire
from attempts.scene import Scene
from attempts.table import NOBODY, attempt, attempts


@attempt(NOBODY, "read the server's greeting", "may: version and limits, no secret")
def reads_the_greeting(scene: Scene) -> Any:
    wire = Wire(scene.info.ports.nats)
    assert b'"auth_required":true' in wire.greeting
    wire.close()
    return wire.greeting


@attempts(
    NOBODY,
    "refused",
    {
        "log in without a user": {},
        "log in as the operator, without a password": {"user": "operator"},
        "log in as the operator, with an empty password": {"user": "operator", "pass": ""},
        "log in as the operator, with a node's name as password": {"user": "operator", "pass": "agent-node-0"},
        "log in as a node, with a guess": {"user": "agent-node-0", "pass": "holdfast"},
        "log in to the system account": {"user": "sys", "pass": "sys"},
        "log in with a token": {"auth_token": "operator"},
        "log in with a JWT and its own key": {"jwt": "e30.e30.e30", "nkey": "UABC", "sig": "AAAA"},
        "log in as a server of the cluster": {"user": "operator", "server": True, "lang": "route"},
        "log in with a user that is no text": {"user": ["operator"], "pass": {"$ne": ""}},
    },
)
def logs_in(scene: Scene, argument: dict[str, Any]) -> Any:
    wire = Wire(scene.info.ports.nats, **argument)
    wire.options |= argument
    with pytest.raises(Refused, match=r"Authorization Violation|closed|Connection reset|Parser|invalid"):
        wire.connect()
    wire.close()


@attempts(
    NOBODY,
    "refused",
    {
        "publish an order before it logs in": b"PUB $KV.desired.node.node-0 2\r\n{}\r\n",
        "subscribe to everything before it logs in": b"SUB > 1\r\n",
        "send a line without end before it logs in": b"CONNECT " + b"{" * 100_000,
        "begin a connection of servers": b"INFO {}\r\nRS+ a b\r\n",
    },
)
def speaks_first(scene: Scene, argument: bytes) -> Any:
    wire = Wire(scene.info.ports.nats)
    wire.options["user"] = "operator"

    def speak() -> None:
        wire.raw(argument)
        for _ in range(3):
            wire.flush()

    with pytest.raises(Refused):
        speak()
    wire.close()


@attempt(NOBODY, "log in as another user with a node's own password", "refused")
def uses_a_password_twice(scene: Scene) -> Any:
    password = scene.credentials.bus[f"agent-{scene.outsider}"]
    for user in (*scene.credentials.bus, "holdfast", "agent-*", "agent-"):
        if user != f"agent-{scene.outsider}":
            with pytest.raises(Refused):
                scene.wire(user, password)
